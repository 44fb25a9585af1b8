// Changes of what an organisation has: what was done is said, what failed too.
import { toast } from "../../components/toast";
import { asApiError } from "../../lib/resource";
import { call, withQuery } from "../../lib/api";
import { duration } from "../../lib/format";

/** Runs a change and says what it did; false where it failed. */
export async function change(done: string, run: () => Promise<unknown>, undo?: () => void): Promise<boolean> {
  try {
    await run();
  } catch (failure) {
    const { message, requestId } = asApiError(failure);
    toast(requestId ? `${message} (request ${requestId})` : message, { kind: "bad" });
    return false;
  }
  toast(done, undo ? { undo } : {});
  return true;
}

export const ORGANIZATION = "v1/organization";

/** A row of `GET /v1/organization/projects/{id}/api_keys`. */
export interface Key {
  id: string;
  name: string;
  created_at: number;
  last_used_at: number | null;
  expires_at: number | null;
  redacted_value: string;
  role?: string;
  scopes?: string[];
  owner: { type?: string; user?: { name: string }; service_account?: { name: string } };
  value?: string;
}

interface Buckets {
  data: { results: { num_model_requests: number }[] }[];
}

/** Requests that a key made in the last minute. */
export async function usedLately(key: string): Promise<number> {
  const query = { start_time: Math.floor(Date.now() / 1000) - 60, bucket_width: "1m", api_key_ids: key };
  const kinds = ["completions", "embeddings", "moderations"];
  const found = await Promise.all(kinds.map((kind) => call<Buckets>(withQuery(`${ORGANIZATION}/usage/${kind}`, query))));
  return found.flatMap((page) => page.data).flatMap((bucket) => bucket.results).reduce((sum, each) => sum + each.num_model_requests, 0);
}

/** What a person should know before a key is revoked. `lately`: null where it could not be found out. */
export function revocationText(lately: number | null, lastUsedAt: number | null, now: number): string {
  const used =
    lately === null ? "How many requests use it now is not known."
    : lately > 0 ? `${lately} ${lately === 1 ? "request" : "requests"} used it in the last minute.`
    : lastUsedAt ? `Nothing used it in the last minute; the last request came ${duration(Math.max(1, Math.round(now - lastUsedAt)))} ago.`
    : "Nothing has used it yet.";
  return `${used} What uses it then is refused, at other gateways within seconds. This cannot be undone.`;
}

/** A limit as the API has it: `2^53 - 1` is none. */
export const UNLIMITED = Number.MAX_SAFE_INTEGER;
export const limitText = (value: number): string => (value === UNLIMITED ? "" : String(value));

/** A limit from what was typed: null for none; NaN where it is no whole number above 0. */
export function limitOf(text: string): number | null {
  const trimmed = text.trim();
  if (!trimmed) return null;
  const value = Number(trimmed);
  return Number.isSafeInteger(value) && value > 0 ? value : Number.NaN;
}
