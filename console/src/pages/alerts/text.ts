// Alerts: what the server tells, and what is said of it.
import type { Level } from "../../components/basics";
import { clock, count, duration, withUnit } from "../../lib/format";

export type State = "ok" | "pending" | "firing";

export interface Alert {
  labels: Record<string, string>;
  state: State;
  since: number;
  value: number | null;
  summary: string;
}

export interface Rule {
  name: string;
  severity: string;
  title: string;
  state: State;
  since: number | null;
  /** Nearest to the threshold, or furthest beyond it; null where there is none now. */
  value: number | null;
  labels: Record<string, string>;
  comparison: string;
  threshold: number;
  unit: string;
  for_s: number;
  promql: string;
  meaning: string;
  first_look: string;
  remedy: string;
  runbook_anchor: string;
  alerts: Alert[];
  more_alerts: number;
}

export interface Transition {
  at: number;
  rule: string;
  severity: string;
  state: string;
  labels: Record<string, string>;
  value: number | null;
  fired: boolean;
}

/** Answer of `GET /console/api/alerts`. */
export interface Alerts {
  enabled: boolean;
  evaluated_at: number | null;
  observed_since: number;
  rules: Rule[];
  transitions: Transition[];
  webhook_configured: boolean;
  /** Null where none is configured, and in processes that do not tell it. */
  webhook: { sent_total: number; failed_total: number; last_error: string | null } | null;
}

export const LEVELS: Record<string, Level> = { ok: "good", pending: "warn", firing: "bad", resolved: "good" };

export function valueText(value: number | null, unit: string): string {
  return withUnit(value, unit === "seconds" ? "s" : unit === "count" ? "" : unit);
}

/** What a rule waits for: `> 95 % for 5 min`. */
export function boundText({ comparison, threshold, unit, for_s }: Rule): string {
  return `${comparison} ${valueText(threshold, unit)}${for_s ? ` for ${duration(for_s)}` : ", at once"}`;
}

/** `model chat-8b, replica 1`. */
export function labelText(labels: Record<string, string>): string {
  return Object.entries(labels).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");
}

/** Says what fires; else what may soon, else that nothing does. */
export function alertSentence(told: Alerts): { text: string; level: Level } {
  if (!told.enabled) return { text: "Alerts are off: alerts.enabled is false in the configuration.", level: "warn" };
  const firing = told.rules.filter((rule) => rule.state === "firing");
  const pending = told.rules.filter((rule) => rule.state === "pending");
  const [worst] = firing;
  if (worst) {
    const alert = worst.alerts.find((each) => each.state === "firing");
    const others = firing.length > 1 ? ` ${count(firing.length - 1, "other rule fires", "other rules fire")}, too.` : "";
    return { text: `${alert?.summary ?? worst.title}, since ${clock(worst.since, false)}.${others}`, level: "bad" };
  }
  if (told.evaluated_at === null) return { text: "The rules have not been looked at yet; the first look comes within seconds.", level: "quiet" };
  if (pending.length) return { text: `Nothing fires; ${pending.length === 1 ? `one rule is beyond its threshold, not yet for long enough: ${pending[0]?.title}` : `${pending.length} rules are beyond their thresholds, not yet for long enough`}.`, level: "warn" };
  return { text: `Nothing fires: none of ${count(told.rules.length, "rule")} is beyond its threshold.`, level: "good" };
}

/** Text with `code` in backticks, in parts. */
export function codeParts(text: string): { text: string; code: boolean }[] {
  return text.split("`").map((part, index) => ({ text: part, code: index % 2 === 1 })).filter((part) => part.text);
}
