// Quality: what the server tells, and what is said of it.
import type { Level } from "../../components/basics";
import { count, number, percent } from "../../lib/format";

export interface Interval {
  low: number;
  high: number;
}

export interface Score {
  organization: string;
  set_id: string;
  set_name: string;
  set_version: number;
  run_id: string;
  model: string;
  version: string;
  score: number;
  passed: number;
  total: number;
  created_at: number;
  baseline_run_id: string | null;
  baseline_version: string | null;
  baseline_score: number | null;
}

interface FeedbackDay {
  day_at: number;
  model: string;
  version: string;
  up: number;
  down: number;
  count: number;
  mean_score: number | null;
}

export interface VersionFeedback {
  model: string;
  version: string;
  up: number;
  down: number;
  share_up: number | null;
  interval: Interval | null;
  compared_with: string | null;
  difference: Interval | null;
}

/** Answer of `GET /console/api/quality`. */
export interface Quality {
  scores: Score[];
  feedback: FeedbackDay[];
  versions: VersionFeedback[];
  /** Null: the viewer may not review any. */
  unreviewed: number | null;
}

/** Share of its baseline below which a score has dropped: the alert's. */
const DROPPED = 0.95;

export const versionOf = ({ model, version }: { model: string; version: string }): string => (version ? `${model}@${version}` : model);

export function hasDropped({ score, baseline_score }: Score): boolean {
  return baseline_score !== null && baseline_score > 0 && score < baseline_score * DROPPED;
}

/** 95 % interval of a share (Wilson, 1927). Null without any. */
export function wilson(passed: number, total: number): Interval | null {
  if (total <= 0) return null;
  const z = 1.959964;
  const share = passed / total;
  const middle = (share + (z * z) / (2 * total)) / (1 + (z * z) / total);
  const half = (z * Math.sqrt((share * (1 - share)) / total + (z * z) / (4 * total * total))) / (1 + (z * z) / total);
  return { low: Math.max(0, middle - half), high: Math.min(1, middle + half) };
}

export function intervalText(interval: Interval | null): string {
  return interval ? `${percent(interval.low)} to ${percent(interval.high)}` : "-";
}

const points = (value: number): string => `${value > 0 ? "+" : ""}${number(value * 100, 2)}`;

/** A difference of shares in points, and whether it is one: `+2 to +9 points`. */
export function differenceText(interval: Interval | null): { text: string; level: Level } {
  if (!interval) return { text: "-", level: "quiet" };
  const level = interval.low > 0 ? "good" : interval.high < 0 ? "bad" : "quiet";
  const verdict = { good: "better", bad: "worse", quiet: "no difference shown", warn: "" }[level];
  return { text: `${verdict}: ${points(interval.low)} to ${points(interval.high)} points`, level };
}

/** Says whether a version got worse; else what is known and what waits. */
export function qualitySentence(told: Quality): { text: string; level: Level; to?: string } {
  const dropped = told.scores.filter(hasDropped).sort((one, other) => one.score / (one.baseline_score ?? 1) - other.score / (other.baseline_score ?? 1));
  const [worst] = dropped;
  if (worst) {
    const text = `${versionOf(worst)} scores ${percent(worst.score)} on ${worst.set_name}; ${worst.baseline_version ?? "its baseline"} had ${percent(worst.baseline_score)}.`;
    return { text, level: "bad", ...(worst.baseline_run_id ? { to: comparison(worst.set_id, worst.run_id, worst.baseline_run_id) } : {}) };
  }
  const ratings = told.versions.reduce((sum, each) => sum + each.up + each.down, 0);
  const up = told.versions.reduce((sum, each) => sum + each.up, 0);
  const parts = [
    told.scores.length ? `no score has dropped (${count(told.scores.length, "newest run")})` : "",
    ratings ? `${percent(up / ratings)} of ${count(ratings, "rating")} are good` : "",
    told.unreviewed ? `${count(told.unreviewed, "sample waits", "samples wait")} for review` : "",
  ].filter(Boolean);
  const text = parts.join("; ");
  if (!text) return { text: "Nothing has been judged yet: no evaluation has run, no feedback has come.", level: "quiet" };
  return { text: `${text[0]?.toUpperCase() ?? ""}${text.slice(1)}.`, level: told.scores.length || ratings ? "good" : "quiet" };
}

export function comparison(set: string, run: string, against: string): string {
  return `quality?${new URLSearchParams({ tab: "compare", set, run, against }).toString()}`;
}

/** Days by which feedback is shown: ratings by day over all versions shown, for a chart. */
export function byDay(days: FeedbackDay[], model: string): { times: number[]; up: number[]; down: number[] } {
  const shown = days.filter((day) => !model || day.model === model);
  const times = [...new Set(shown.map((day) => day.day_at))].sort((one, other) => one - other);
  const sum = (at: number, name: "up" | "down"): number => shown.filter((day) => day.day_at === at).reduce((all, day) => all + day[name], 0);
  return { times, up: times.map((at) => sum(at, "up")), down: times.map((at) => sum(at, "down")) };
}

/** Text of a message's content: a string, or parts of which those without text are named. */
export function contentText(content: unknown): string {
  if (typeof content === "string") return content;
  if (Array.isArray(content)) return content.map((part) => contentText(part)).join("\n");
  if (typeof content === "object" && content !== null) {
    const { text, type } = content as { text?: unknown; type?: unknown };
    return typeof text === "string" ? text : `[${typeof type === "string" ? type : "part"}]`;
  }
  return content === null || content === undefined ? "" : String(content);
}

/** Turns of what was asked: messages with roles, or one prompt. */
export function turnsOf(input: Record<string, unknown>): { role: string; text: string }[] {
  const { messages, prompt } = input;
  if (Array.isArray(messages)) {
    return messages.map((message: { role?: unknown; content?: unknown }) => ({ role: String(message.role ?? ""), text: contentText(message.content) }));
  }
  return [{ role: "prompt", text: contentText(prompt) }];
}
