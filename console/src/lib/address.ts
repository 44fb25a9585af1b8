// The address holds all state of a view: `requests/req-1?status=error&range=1h`, below wherever the console is served.
import { computed, signal, type ReadonlySignal } from "@preact/signals";

export interface Address {
  /** Name of the page, `requests`. */
  page: string;
  /** What follows it, decoded: `["req-1"]`. */
  rest: string[];
  query: URLSearchParams;
}

/** Parameters that stay when another page is opened. */
export const KEPT = ["range", "model", "live"] as const;

/** Address from what follows the console's root: a path with or without a query. */
export function parseAddress(text: string): Address {
  const [path = "", query = ""] = text.split("#", 1)[0]?.split(/\?(.*)/s) ?? [];
  const [page = "", ...rest] = path.split("/").filter(Boolean).map(decoded);
  return { page: page || "overview", rest, query: new URLSearchParams(query) };
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment; // a lone % that someone typed
  }
}

/** Address for a link, beginning with the console's root. */
export function formatAddress(page: string, rest: string[], query: URLSearchParams): string {
  const path = [page, ...rest].map(encodeURIComponent).join("/");
  const text = query.toString();
  return `${consolePath}${path}${text ? `?${text}` : ""}`;
}

const inBrowser = typeof window !== "undefined";
/** Path of the console's root, `/console/` or behind a proxy `/llm/console/`: the server writes it as the page's base. */
const consolePath = inBrowser ? new URL(document.baseURI).pathname : "/console/";

/** Address below the root, of a location; null for one that is not the console's. */
export function belowRoot({ pathname, search }: { pathname: string; search: string }): string | null {
  if (`${pathname}/` === consolePath) return search;
  return pathname.startsWith(consolePath) ? pathname.slice(consolePath.length) + search : null;
}

const current = signal<Address>(parseAddress((inBrowser && belowRoot(window.location)) || ""));
export const address: ReadonlySignal<Address> = computed(() => current.value);

/** Makes back, forward and links to pages of the console change the view without loading it anew. */
export function followAddress(): void {
  window.addEventListener("popstate", () => {
    current.value = parseAddress(belowRoot(window.location) ?? "");
  });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    if (!link || link.target || link.hasAttribute("download") || link.origin !== window.location.origin) return;
    const below = belowRoot(link);
    if (below === null || /^(api|oidc|assets)\//.test(below)) return; // files and sign-in, which the server answers
    event.preventDefault();
    go(link.pathname + link.search);
  });
}

export type Query = Record<string, string | number | boolean | null | undefined>;

/** Address of another page, with the range, the model and the live switch of this one. `target`: `requests/req-1`,
 * also with a query (`requests?status=error`), as the server's links have it, with `/console/` before it or
 * without. */
export function href(target: string, query: Query = {}, from: Address = current.value): string {
  const to = parseAddress(target.replace(/^\/?console\//, ""));
  for (const name of KEPT) {
    const value = from.query.get(name);
    if (value !== null && !to.query.has(name)) to.query.set(name, value);
  }
  return formatAddress(to.page, to.rest, withChanges(to.query, query));
}

export function withChanges(query: URLSearchParams, changes: Query): URLSearchParams {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "" || value === false) next.delete(name);
    else next.set(name, value === true ? "1" : String(value));
  }
  return next;
}

/** Opens an address that `href` made. */
export function go(to: string, replace = false): void {
  if (replace) window.history.replaceState(null, "", to);
  else window.history.pushState(null, "", to);
  current.value = parseAddress(to.slice(consolePath.length));
}

/** Changes parameters of this view. They replace the entry in the history unless `push` is set. */
export function setQuery(changes: Query, push = false): void {
  const { page, rest, query } = current.value;
  go(formatAddress(page, rest, withChanges(query, changes)), !push);
}

interface Param {
  value: string;
}

/** A parameter of the address, read and written like a signal: components that read it are drawn again when it changes. */
export function param(name: string, fallback = ""): Param {
  return {
    get value() {
      return current.value.query.get(name) ?? fallback;
    },
    set value(value: string) {
      setQuery({ [name]: value === fallback ? null : value });
    },
  };
}

/** Ranges of time that a page may show, with their seconds. */
export const RANGES = { "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "30d": 2592000 } as const;
export type Range = keyof typeof RANGES;
export const RANGE_WORDS: Record<Range, string> = {
  "15m": "last 15 minutes", "1h": "last hour", "6h": "last 6 hours", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days",
};

export const model = param("model");
const rangeParam = param("range", "1h");
/** Range of time of the page. An unknown one reads as `1h`. */
export const range = {
  get value(): Range {
    return rangeParam.value in RANGES ? (rangeParam.value as Range) : "1h";
  },
  set value(value: Range) {
    rangeParam.value = value;
  },
};
/** The range that a page shows, of those it can: the address's, else the next longer one, else its longest. `ranges` rise. */
export function shownRange(ranges: Range[]): Range {
  const wanted = RANGES[range.value];
  return ranges.find((each) => RANGES[each] >= wanted) ?? ranges.at(-1) ?? "1h";
}
const liveParam = param("live", "1");
/** Whether the page follows its stream. */
export const live = {
  get value(): boolean {
    return liveParam.value !== "0";
  },
  set value(on: boolean) {
    liveParam.value = on ? "1" : "0";
  },
};
