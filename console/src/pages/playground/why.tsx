// Ribbon and sentence of an answer: from arrival times at first, then as the server explains them.
import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Ribbon, type Cell } from "../../components/ribbon";
import { href } from "../../lib/address";
import { call } from "../../lib/api";
import { asApiError } from "../../lib/resource";
import type { Draft } from "./answer";
import { keptId, type Figures } from "./conversation";

/** What is read of `GET /console/api/requests/{id}`. */
interface Detail {
  explanation: { sentence: string; tokens: Cell[] };
}

/** Milliseconds before each try: requests are kept once a second. */
const TRIES = [1500, 2500, 5000];
const details = new Map<string, Detail>();

async function detailOf(id: string, signal: AbortSignal): Promise<Detail | null> {
  for (const wait of TRIES) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    if (signal.aborted) return null;
    try {
      return await call<Detail>(`console/api/requests/${encodeURIComponent(id)}`, { signal });
    } catch (failure) {
      if (signal.aborted || asApiError(failure).status !== 404) return null;
    }
  }
  return null;
}

export function Why({ figures, draft }: { figures: Figures; draft: Draft | undefined }) {
  const id = keptId(figures.requestId);
  const detail = useSignal<Detail | null>(details.get(id) ?? null);
  useEffect(() => {
    // Of answers from before this visit the request page tells: a long chat asks for nothing here.
    if (!id || detail.value || !draft) return;
    const stop = new AbortController();
    void detailOf(id, stop.signal).then((found) => {
      if (!found) return;
      details.set(id, found);
      detail.value = found;
    });
    return () => stop.abort();
  }, [id]);
  if (!id) return null;
  const told = detail.value?.explanation;
  const cells = told?.tokens.length ? told.tokens : (draft?.cells ?? []);
  const texts = told && draft?.tokens.length === told.tokens.length ? draft?.tokens.map((token) => token.text) : undefined;
  return (
    <div class="pg-why">
      {cells.length > 0 && <Ribbon cells={cells} {...(texts ? { texts } : {})} />}
      <p>{told && <>{told.sentence} </>}<a href={href(`requests/${encodeURIComponent(id)}`)}>Why did it take so long?</a></p>
    </div>
  );
}
