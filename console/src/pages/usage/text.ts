// Usage: what the server tells, and what is said of it.
import { href, type Query } from "../../lib/address";
import { compact, duration, money, number, percent } from "../../lib/format";

export interface UsageAmounts {
  requests: number;
  input_tokens: number;
  cached_tokens: number;
  output_tokens: number;
  cost: number;
}

export interface UsageRow extends UsageAmounts {
  /** Null for use by no key or no user. */
  id: string | null;
  name: string;
  /** Organisation of a project, shortened value of a key. */
  detail: string;
  currency: string;
}

export interface UsageBucket extends UsageAmounts {
  at: number;
}

/** Answer of `GET /console/api/usage`. */
export interface Usage {
  start: number;
  end: number;
  width_s: number;
  group: Group;
  currency: string;
  rows: UsageRow[];
  more_rows: number;
  buckets: UsageBucket[];
  lines: { name: string; tokens: number[]; cost: number[] }[];
  names: Record<string, string>;
}

export const GROUPS = ["organization", "project", "model", "key", "user"] as const;
export type Group = (typeof GROUPS)[number];
export const GROUP_NAMES: Record<Group, string> = {
  organization: "tenant", project: "project", model: "model", key: "key", user: "user",
};

export const tokens = (of: UsageAmounts): number => of.input_tokens + of.output_tokens;

export function total(rows: UsageAmounts[]): UsageAmounts {
  const sum = (name: keyof UsageAmounts): number => rows.reduce((all, row) => all + row[name], 0);
  return {
    requests: sum("requests"), input_tokens: sum("input_tokens"), cached_tokens: sum("cached_tokens"),
    output_tokens: sum("output_tokens"), cost: sum("cost"),
  };
}

/** Name of a row, with what tells it from others of the same name. */
export function nameOf(row: UsageRow, group: Group): string {
  if (row.id === null) return `no ${GROUP_NAMES[group]}`;
  return group === "project" && row.detail ? `${row.detail} / ${row.name}` : row.name;
}

/** What a row is made of: the next finer group, or the requests. Those know no user of the ledger: `user` there is the
 * client's own. `filters`: of the page. */
export function spenderLink({ id }: UsageRow, group: Group, filters: Query): string {
  const ofRequests = { ...filters, user: null };
  if (id === null) return href("requests", ofRequests);
  switch (group) {
    case "organization": return href("usage", { ...filters, organization: id, group: "project" });
    case "project": return href("usage", { ...filters, project: id, group: "key" });
    case "model": return href("usage", { ...filters, model: id, group: "project" });
    case "key": return href("requests", { ...ofRequests, key: id });
    case "user": return href("usage", { ...filters, user: id, group: "key" });
  }
}

/** Width of a chart's step: `an hour`, `in 5 min`. */
export function widthText(seconds: number): string {
  return { 60: "a minute", 3600: "an hour", 86400: "a day" }[seconds] ?? `in ${duration(seconds)}`;
}

/** Whether anything has a price. */
export const isPriced = (usage: Usage): boolean => usage.rows.some((row) => row.cost > 0);

/** Says who spends most; without prices, who uses most tokens. */
export function usageSentence(usage: Usage, during: string): string {
  const [first] = usage.rows;
  const all = total(usage.buckets);
  if (!first) return `No usage in the ${during}.`;
  const name = nameOf(first, usage.group);
  const who = first.id === null ? `Requests of ${name}` : `${name[0]?.toUpperCase() ?? ""}${name.slice(1)}`;
  const tokensOf = `${compact(tokens(first))} of ${compact(tokens(all))} tokens`;
  if (!isPriced(usage)) return `${who} used most in the ${during}: ${tokensOf} (${percent(tokens(first) / Math.max(1, tokens(all)))}).`;
  const share = first.currency === usage.currency && all.cost > 0 ? ` of ${money(all.cost, usage.currency)} (${percent(first.cost / all.cost)})` : "";
  return `${who} spent most in the ${during}: ${money(first.cost, first.currency)}${share}, ${tokensOf}.`;
}

/** Use of a budget: `$4.10 of $20.00 (21 %)`. Limits of neither kind read as no bound. */
export function budgetText(spent: number, limit: number | null, currency: string | null): string {
  const shown = (value: number): string => (currency ? money(value, currency) : `${number(value)} tokens`);
  if (limit === null) return `${shown(spent)}, no hard limit`;
  return `${shown(spent)} of ${shown(limit)}${limit > 0 ? ` (${percent(spent / limit)})` : ""}`;
}
