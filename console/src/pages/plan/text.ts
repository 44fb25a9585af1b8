// The plan in words, and the data of its charts.
import { bytes, compact, count, duration, money, number, percent, withUnit } from "../../lib/format";
import type { SentenceData } from "../../frame/head";
import type { Candidate, Part, Plan, Quantity } from "./types";
import type { Question } from "./state";

/** A quantity's value with its unit. */
export function valueText({ value, unit }: Quantity): string {
  if (unit === "B" || unit === "bytes") return bytes(value);
  if (/^(\$|USD)/.test(unit)) return `${dollars(value)}${unit.replace(/^(\$|USD)/, "")}`;
  if (Math.abs(value) >= 1e7) return `${compact(value)}${unit ? ` ${unit}` : ""}`;
  return withUnit(value, unit);
}

/** Dollars with three digits: `$4.13`, `$0.328`. */
export const dollars = (value: number): string => (value !== 0 && Math.abs(value) < 1 ? `$${number(value)}` : money(value));

/** `± 12 %`, `exact`, or empty where the error is not known. */
export function errorText({ error }: Quantity): string {
  if (error === null || error === undefined) return "";
  return error === 0 ? "exact" : `± ${percent(error)}`;
}

/** Names of parts that are no words as they are. */
const NAMES: Record<string, string> = { kv_cache: "KV cache", mlp: "MLP" };
export const partName = (name: string): string => NAMES[name] ?? name.replaceAll("_", " ");

/** Places of parts by their size, the largest first: what has a colour of its own. */
export function bySize(parts: Part[]): number[] {
  const order = parts.map((part, index) => ({ index, size: part.quantity.value })).sort((a, b) => b.size - a.size);
  return parts.map((_, index) => order.findIndex((each) => each.index === index));
}

export const sumOf = (parts: Part[]): number => parts.reduce((sum, part) => sum + part.quantity.value, 0);

/** The candidate that the address names, else the first. */
export const picked = (plan: Plan, name: string): Candidate | undefined => plan.candidates.find((each) => each.name === name) ?? plan.candidates[0];

/** Who serves what for how much, in a sentence; or why nothing does. */
export function planSentence(plan: Plan, asked: Question, titleOf: TitleOf): SentenceData {
  const best = plan.candidates[0];
  const traffic = `${number(asked.rate)} requests/s of ${plan.model}`;
  if (!best) {
    const why = plan.rejected[0];
    return { level: "bad", text: `Nothing that was considered serves ${traffic} within the targets${why ? `: ${why.name}: ${withoutDot(why.reason)}` : ""}.` };
  }
  const cost = `${dollars(best.money.total.value)} an hour, ${dollars(best.money.per_million_tokens.value)} for a million tokens`;
  const held = `TTFT p${number(100 * asked.percentile)} ${duration(best.ttft.value)} of ${duration(asked.ttft)}, TPOT ${duration(best.tpot.value)} of ${duration(asked.tpot)}`;
  return { level: "good", text: `${deviceText(best, titleOf)} ${best.devices === 1 ? "serves" : "serve"} ${traffic} for ${cost}; ${held}.` };
}

const withoutDot = (text: string): string => text.replace(/\.$/, "");

/** Title of a device by its name. */
export type TitleOf = (device: string) => string;

/** `2 × H100 SXM`. */
export function deviceText(of: Candidate, titleOf: TitleOf): string {
  return `${number(of.devices)} × ${titleOf(of.layout.device)}`;
}

/** How the replicas are made: `TP 2, 3 replicas, int8 weights, fp8 cache`. */
export function layoutText({ layout, pools }: Candidate): string {
  const parts = [
    layout.tensor_parallel > 1 ? `TP ${layout.tensor_parallel}` : "",
    layout.pipeline_parallel > 1 ? `PP ${layout.pipeline_parallel}` : "",
    layout.expert_parallel ? "experts divided" : "",
    pools.map((pool) => `${count(pool.replicas, "replica")}${pool.role === "serve" ? "" : ` (${pool.role})`}`).join(" + "),
    layout.weights === "plain" ? "" : `${layout.weights} weights`,
    layout.kv_dtype === "bfloat16" ? "" : `${layout.kv_dtype} cache`,
    layout.host_gib ? `${number(layout.host_gib)} GiB of blocks in main memory` : "",
  ];
  return parts.filter(Boolean).join(", ");
}

export interface BreakEven {
  /** Tokens a day, rising. */
  tokens: number[];
  own: number[];
  api: number[];
  /** Tokens a day at the plan's rate. */
  now: number;
}

const SECONDS_A_DAY = 86400;
const STEPS = 40;

/** Dollars a day over tokens a day: these devices cost the same however many come, up to what they are for; the API by the token. */
export function breakEven(of: Candidate, asked: Question): BreakEven | null {
  const point = of.money.break_even_tokens_per_day;
  const hour = of.money.api_hour;
  if (!point || !hour) return null;
  const now = asked.rate * (asked.input + asked.output) * SECONDS_A_DAY;
  const perToken = (hour.value * 24) / now;
  const end = Math.max(now, point.value) * 1.25;
  const tokens = Array.from({ length: STEPS + 1 }, (_, index) => (end * index) / STEPS);
  return { tokens, now, own: tokens.map(() => of.money.total.value * 24), api: tokens.map((each) => each * perToken) };
}
