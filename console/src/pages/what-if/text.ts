// What a simulation says, in words, and the data of its charts.
import { duration, number, percent } from "../../lib/format";
import type { SentenceData } from "../../frame/head";
import type { Distribution, Side, Simulated } from "./types";

/** The value at a probability, linear between those that are given. */
export function quantile(of: Distribution | null, probability: number): number | null {
  if (!of?.values.length) return null;
  const place = probability * (of.values.length - 1);
  const low = Math.floor(place);
  const [a = 0, b = a] = [of.values[low], of.values[Math.min(low + 1, of.values.length - 1)]];
  return a + (place - low) * (b - a);
}

/** The probability that a value is not passed. */
export function probability(of: Distribution, value: number): number {
  const { values } = of;
  const last = values.length - 1;
  if (value < (values[0] ?? 0)) return 0;
  if (last <= 0 || value >= (values[last] ?? 0)) return 1;
  const above = values.findIndex((each) => each > value);
  const [a = 0, b = a] = [values[above - 1], values[above]];
  return (above - 1 + (b > a ? (value - a) / (b - a) : 0)) / last;
}

export interface Curves {
  seconds: number[];
  shares: (number | null)[][];
}

const POINTS = 120;
/** Shortest time on an axis: what was answered at once is drawn there. */
const LEAST_S = 0.001;

/** Shares of requests within each time, of several distributions over one axis (equal factors between its points). */
export function curves(distributions: (Distribution | null)[]): Curves {
  const known = distributions.filter((each) => each !== null);
  const ends = known.flatMap(({ values }) => [values[0] ?? LEAST_S, values.at(-1) ?? LEAST_S]).map((each) => Math.max(LEAST_S, each));
  if (!ends.length) return { seconds: [], shares: distributions.map(() => []) };
  const [low, high] = [Math.min(...ends), Math.max(...ends, 2 * Math.min(...ends))];
  const seconds = Array.from({ length: POINTS + 1 }, (_, index) => low * (high / low) ** (index / POINTS));
  return { seconds, shares: distributions.map((each) => seconds.map((at) => each && probability(each, at))) };
}

/** How far the simulation of how it was is from what was measured, relative: the largest of TTFT's p95 (their medians are
 * made to agree), TPOT's median and its p95. */
export function modelError({ measured, before }: Simulated): number | null {
  const apart = (name: "ttft_s" | "tpot_s", at: number): number | null => {
    const [real, simulated] = [quantile(measured[name], at), quantile(before[name], at)];
    return real && simulated !== null ? Math.abs(simulated / real - 1) : null;
  };
  const found = [apart("ttft_s", 0.95), apart("tpot_s", 0.5), apart("tpot_s", 0.95)].filter((each) => each !== null);
  return found.length ? Math.max(...found) : null;
}

/** `1.8 times as long`, `40 % shorter`, `as long`. */
export function changeText(before: number | null, after: number | null): string {
  if (before === null || after === null) return "-";
  if (before === 0) return after === 0 ? "as long" : "longer";
  const ratio = after / before;
  if (Math.abs(ratio - 1) < 0.02) return "as long";
  if (ratio >= 2) return `${number(ratio, 2)} times as long`;
  return ratio > 1 ? `${percent(ratio - 1)} longer` : `${percent(1 - ratio)} shorter`;
}

/** The words for what was changed: `2 replicas, int8 cache`. */
export function changesText(query: URLSearchParams): string {
  const value = (name: string): string => query.get(name) ?? "";
  return [
    value("replicas") && `${value("replicas")} ${value("replicas") === "1" ? "replica" : "replicas"}`,
    value("whole_prompts") && "no chunked prefill",
    value("quantization") && `${value("quantization")} weights`,
    value("kv_cache_dtype") && `${value("kv_cache_dtype")} cache`,
    value("device") && `${value("device")} devices`,
    value("token_budget") && `a token budget of ${number(Number(value("token_budget")))}`,
    value("max_num_seqs") && `${number(Number(value("max_num_seqs")))} sequences at once`,
  ].filter(Boolean).join(", ");
}

/** The verdict: what the change does to latency and targets, and whether that is more than the model's error. */
export function verdict(of: Simulated, changed: string): SentenceData {
  const [before, after] = [quantile(of.before.ttft_s, 0.95), quantile(of.after.ttft_s, 0.95)];
  const [tpotBefore, tpotAfter] = [quantile(of.before.tpot_s, 0.95), quantile(of.after.tpot_s, 0.95)];
  if (!changed) return { text: "Nothing is changed: this shows how far the simulation is from what was measured.", level: "quiet" };
  const error = modelError(of);
  const ratio = before && after ? after / before : 1;
  const rest = tpotBefore && tpotAfter ? tpotAfter / tpotBefore : 1;
  const large = error === null || Math.max(Math.abs(ratio - 1), Math.abs(rest - 1)) > error;
  const lost = of.after.refused + of.after.failed - of.before.refused - of.before.failed;
  const targets = percent(of.before.within_targets) !== percent(of.after.within_targets)
    ? `; ${percent(of.after.within_targets)} of the requests within the targets in place of ${percent(of.before.within_targets)}` : "";
  const refusals = lost ? `; ${number(Math.abs(lost))} ${lost > 0 ? "more" : "fewer"} refused or lost` : "";
  const times = `TTFT p95 ${duration(after)} in place of ${duration(before)} (${changeText(before, after)}), TPOT p95 ${duration(tpotAfter)} in place of ${duration(tpotBefore)}`;
  const doubt = error === null ? "" : large ? ` The simulation is ${percent(error)} off where it can be compared.` : ` The change is smaller than the simulation's error of ${percent(error)}: no conclusion.`;
  const worse = (of.after.within_targets ?? 0) < (of.before.within_targets ?? 0) - 0.005 || lost > 0;
  return { text: `With ${changed}: ${times}${targets}${refusals}.${doubt}`, level: !large ? "quiet" : worse ? "warn" : "good" };
}

export interface Figure {
  name: string;
  text: (side: Side) => string;
}

const time = (name: "ttft_s" | "tpot_s" | "total_s", at: number) => (side: Side): string => duration(quantile(side[name], at));

export const FIGURES: Figure[] = [
  ...([["TTFT", "ttft_s"], ["TPOT", "tpot_s"], ["Whole answer", "total_s"]] as const).flatMap(([title, name]) =>
    ([["p50", 0.5], ["p95", 0.95], ["p99", 0.99]] as const).map(([label, at]) => ({ name: `${title} ${label}`, text: time(name, at) }))),
  { name: "Within the targets", text: (side) => percent(side.within_targets) },
  { name: "Answered", text: (side) => number(side.answered) },
  { name: "Refused", text: (side) => number(side.refused) },
  { name: "Failed or left", text: (side) => number(side.failed) },
  { name: "Devices busy", text: (side) => percent(side.utilisation) },
  { name: "Preemptions", text: (side) => number(side.preemptions) },
  { name: "Prompts found in the cache", text: (side) => percent(side.cached_share) },
  { name: "Device hours", text: (side) => number(side.device_hours) },
];
