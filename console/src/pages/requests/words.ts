// Words about requests, from their numbers.
import type { Level } from "../../components/basics";
import type { SentenceData } from "../../frame/head";
import { duration, number } from "../../lib/format";
import type { RequestRow } from "./types";

const REASONS: Record<string, string> = {
  ordinary: "ordinary: a sample of all requests",
  slow: "slow: among the slowest of its model and hour",
  refused: "refused",
  error: "error",
};

/** Why a request is kept, in words. */
export function keptBecause(reason: string): string {
  return REASONS[reason] ?? reason;
}

/** Status as people say it: 0 is no status at all. */
export function statusText({ status, outcome }: Pick<RequestRow, "status" | "outcome">): string {
  return status === 0 ? outcome : outcome === "finished" ? String(status) : `${status} ${outcome}`;
}

export function statusLevel({ outcome }: Pick<RequestRow, "outcome">): Level {
  return outcome === "finished" ? "good" : outcome === "failed" ? "bad" : "warn";
}

/** `1,204 in (0 cached) + 312 out`. */
export function tokensText({ input_tokens, cached_tokens, output_tokens }: Pick<RequestRow, "input_tokens" | "cached_tokens" | "output_tokens">): string {
  return `${number(input_tokens)} in (${number(cached_tokens)} cached) + ${number(output_tokens)} out`;
}

/** The state of a list, from the rows that are shown. */
export function listSentence(rows: RequestRow[], more: boolean, order: string, when: string): SentenceData {
  if (!rows.length) return { text: `No kept request of ${when} matches.` };
  const slowest = rows.reduce((one, other) => (other.total_s > one.total_s ? other : one));
  const [failed, refused] = ["failed", "refused"].map((outcome) => rows.filter((row) => row.outcome === outcome).length);
  const which = order === "slowest" ? "slowest" : "newest";
  const only = rows.length === 1 && !more;
  const shown = more ? `The ${rows.length} ${which} requests of ${when}` : only ? `One request of ${when} matches` : `All ${rows.length} requests of ${when} that match`;
  const bad = [failed && `${failed} failed`, refused && `${refused} refused`].filter(Boolean).join(", ");
  const text = `${shown}: ${only ? "it" : "the slowest"} took ${duration(slowest.total_s)}; ${bad || "none failed"}.`;
  return { text, level: failed ? "bad" : refused ? "warn" : "good", to: `requests/${slowest.id}` };
}

/** The sentence of a request: what became of it where it did not end well, then why it took so long. */
export function requestSentence(request: Pick<RequestRow, "outcome" | "status" | "error_code">, explained: { sentence: string; cause: { code: string } }): SentenceData {
  const { outcome, status, error_code } = request;
  const ended: Record<string, string> = { failed: "Failed", refused: "Refused", aborted: "The client left before the end" };
  if (outcome === "finished") return { text: explained.sentence, level: explained.cause.code === "own work" ? "good" : "warn" };
  const why = [outcome === "aborted" ? 0 : status, error_code].filter(Boolean).join(" ");
  return { text: `${ended[outcome] ?? outcome}${why ? ` (${why})` : ""}. ${explained.sentence}`, level: outcome === "failed" ? "bad" : "warn" };
}

/** Name of the model that a request reached; null where it reached none. */
export function modelOf({ model }: Pick<RequestRow, "model">): string | null {
  return model && model !== "unknown" ? model : null;
}
