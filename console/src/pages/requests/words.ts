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

/** What the response cache did: `hit (semantic 0.972), 42 s old`; empty where it has no part in the request. */
export function cacheText({ result, kind, age, similarity }: Record<string, string>): string {
  if (!result) return "";
  if (result !== "hit") return result === "miss" ? "miss, the answer is kept" : "bypassed: a model answered";
  return `hit (${[kind, similarity].filter(Boolean).join(" ")}), ${duration(Number(age))} old`;
}

const MOST = 10_000; // the server counts no further
const many = (value: number): string => (value >= MOST ? `${number(MOST)} or more` : number(value));

interface ListedState {
  rows: RequestRow[];
  matching: number | null;
  kept: number | null;
  order: string;
  /** Seconds of the filter `slower than`, where it is the only one. */
  slower: number | null;
  /** `the last hour`. */
  when: string;
}

/** The state of a list: how many of how many, the slowest where it is here, and what failed of those shown. */
export function listSentence({ rows, matching, kept, order, slower, when }: ListedState): SentenceData {
  const of = kept === null ? "" : ` of ${many(kept)}`;
  const slowest = rows.reduce<RequestRow | null>((one, other) => (one && one.total_s >= other.total_s ? one : other), null);
  if (!slowest) return { text: kept ? `None of ${many(kept)} kept requests of ${when} matches.` : `No request of ${when} is kept.` };
  const all = matching === null || matching <= rows.length;
  const what = slower === null ? (matching === 1 ? "matches" : "match") : `took ${duration(slower)} or more`;
  const counted = matching === kept && slower === null ? `${many(matching ?? rows.length)} kept ${matching === 1 ? "request" : "requests"} of ${when}`
    : `${many(matching ?? rows.length)}${of} kept requests of ${when} ${what}`;
  const known = all || order === "slowest" ? `; the slowest took ${duration(slowest.total_s)}` : "";
  const [failed, refused] = ["failed", "refused"].map((outcome) => rows.filter((row) => row.outcome === outcome).length);
  const bad = [failed && `${failed} failed`, refused && `${refused} refused`].filter(Boolean).join(", ") || "none failed";
  const text = `${counted}${known}; ${all ? "" : `of the ${rows.length} shown, `}${bad}.`;
  return { text, level: failed ? "bad" : refused ? "warn" : "good", ...(known ? { to: `requests/${slowest.id}` } : {}) };
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
