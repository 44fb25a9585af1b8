// One simulation on the server: followed until it ends; leaving ends it.
import { useEffect } from "preact/hooks";
import { useSignal, type ReadonlySignal } from "@preact/signals";
import { ApiError, send } from "../../lib/api";
import { eventsOf } from "../../lib/events";
import { asApiError } from "../../lib/resource";
import type { Simulated, Window } from "./types";

interface Run {
  window: ReadonlySignal<Window | null>;
  /** Part that is done; null while nothing runs. */
  share: ReadonlySignal<number | null>;
  result: ReadonlySignal<Simulated | null>;
  error: ReadonlySignal<ApiError | null>;
}

/** Runs what `path` asks for; null: nothing. */
export function useRun(path: string | null): Run {
  const run = { window: useSignal<Window | null>(null), share: useSignal<number | null>(null), result: useSignal<Simulated | null>(null), error: useSignal<ApiError | null>(null) };
  useEffect(() => {
    run.result.value = run.error.value = run.window.value = run.share.value = null;
    if (path === null) return;
    const stop = new AbortController();
    const follow = async (): Promise<void> => {
      run.share.value = 0;
      const response = await send(path, { signal: stop.signal, headers: { accept: "text/event-stream" } });
      for await (const { event, data } of eventsOf(response)) {
        if (stop.signal.aborted) return;
        const told = JSON.parse(data) as unknown;
        if (event === "window") run.window.value = told as Window;
        if (event === "progress") run.share.value = (told as { share: number }).share;
        if (event === "simulated") run.result.value = told as Simulated;
        if (event === "failed") throw new ApiError((told as { message: string }).message, 400, "failed", "");
      }
      if (!run.result.value) throw new ApiError("The server ended before the simulation did: run it again.", 0, "ended", "");
    };
    follow()
      .catch((failure: unknown) => { if (!stop.signal.aborted) run.error.value = asApiError(failure); })
      .finally(() => { if (!stop.signal.aborted) run.share.value = null; });
    return () => stop.abort();
  }, [path]);
  return run;
}
