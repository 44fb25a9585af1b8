// The search of requests: words become filters of the address.

/** Filters that the list's address has, with what a person calls them. Times are in seconds. */
export const FILTERS = {
  q: "search",
  id: "id",
  session: "session",
  user: "user",
  key: "key",
  model: "model",
  version: "version",
  organization: "organization",
  project: "project",
  batch: "batch",
  endpoint: "endpoint",
  status: "status",
  outcome: "outcome",
  reason: "kept as",
  cause: "cause",
  min_total: "slower than",
  min_ttft: "TTFT above",
} as const;
export type Filter = keyof typeof FILTERS;

const ALIASES: Record<string, Filter> = {
  request: "id", org: "organization", slower: "min_total", ttft: "min_ttft", kept: "reason", path: "endpoint", why: "cause",
};

/** Seconds of `2`, `2s`, `500ms`, `2min`; null for anything else. */
export function secondsOf(text: string): number | null {
  const found = /^(\d+(?:\.\d+)?|\.\d+)\s*(us|µs|ms|s|min|m)?$/.exec(text.trim());
  if (!found) return null;
  const unit = { us: 1e-6, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, m: 60 }[found[2] ?? "s"] ?? 1;
  return Number((Number(found[1]) * unit).toPrecision(12));
}

/** Beginnings of the ids of answers, of requests, and of both without what stands before. */
const ID = /^(chatcmpl-|cmpl-|resp_|msg_|rerank-|score-|pool-|req-|[0-9a-f]{8,}$)/;

/** Filter that a word without a name means. */
function guess(word: string): [Filter, string] {
  const time = /^>=?(.+)$/.exec(word);
  const seconds = time?.[1] === undefined ? null : secondsOf(time[1]);
  if (seconds !== null) return ["min_total", String(seconds)];
  if (/^([1-5]\d\d|[1-5]xx)$/.test(word)) return ["status", word];
  if (word.startsWith("/")) return ["endpoint", word];
  if (/^batch_./.test(word)) return ["batch", word];
  if (ID.test(word)) return ["id", word];
  return ["q", word];
}

/** Filters of a search such as `session:support-4 >2s 5xx`. Words without a name are guessed; quotes keep spaces. */
export function parseSearch(text: string): Partial<Record<Filter, string>> {
  const found: Partial<Record<Filter, string>> = {};
  for (const [word, name, quoted, plain, bare] of text.matchAll(/([a-z_]+):(?:"([^"]*)"|(\S+))|"([^"]+)"|\S+/g)) {
    const filter = name === undefined ? undefined : (ALIASES[name] ?? (name in FILTERS ? (name as Filter) : undefined));
    if (filter === undefined) {
      const [guessed, value] = guess(bare ?? word);
      found[guessed] = value;
      continue;
    }
    const value = quoted ?? plain ?? "";
    const seconds = filter === "min_total" || filter === "min_ttft" ? secondsOf(value.replace(/^>=?/, "")) : null;
    found[filter] = seconds === null ? value : String(seconds);
  }
  return found;
}
