import { describe, expect, it } from "vitest";
import { fromPosition, toPosition } from "../src/components/form";
import { compactConfig, FALLBACK, PASTED, pricesOf, queryOf, questionOf, requestOf, type Question } from "../src/pages/plan/state";
import { breakEven, errorText, layoutText, planSentence, valueText } from "../src/pages/plan/text";
import type { Candidate, Plan, Quantity } from "../src/pages/plan/types";

const q = (value: number, unit = "", error: number | null = 0): Quantity => ({ value, unit, formula: "", assumption: "", error, source: "" });
const pool = { role: "serve", replicas: 3, devices: 6, capacity_rps: q(8), utilisation: q(0.6), batch: q(20) };
const CANDIDATE = {
  name: "a", devices: 6, pools: [pool], ttft: q(0.3, "s"), tpot: q(0.02, "s"),
  layout: { device: "h100", tensor_parallel: 2, pipeline_parallel: 1, expert_parallel: false, weights: "int8", kv_dtype: "bfloat16", host_gib: 0 },
  money: { total: q(24), per_million_tokens: q(0.5), api_hour: q(48), break_even_tokens_per_day: q(5e7) },
} as unknown as Candidate;
const PLAN: Plan = { model: "Qwen3-8B", model_facts: [], request: {}, candidates: [CANDIDATE], rejected: [], curves: [], notes: [] };
const titleOf = (device: string): string => device.toUpperCase();

describe("the question", () => {
  it("is the same after a way through the address", () => {
    const asked: Question = { ...FALLBACK, of: PASTED, config: '{"a":1}', devices: ["h200", "l4"], rate: 0.3, cached: 0, services: 0, prices: { l4: 0.7 }, tp: 4 };
    const query = new URLSearchParams(Object.entries(queryOf(asked)).flatMap(([name, value]) => (value === null || value === undefined ? [] : [[name, String(value)]])));
    expect(questionOf(query)).toEqual(asked);
  });
  it("reads what makes no sense as if it were not there", () => {
    expect(questionOf(new URLSearchParams("rate=-3&input=much&gpu=,&price=h100,h200:x,l4:1"))).toEqual({ ...FALLBACK, prices: { l4: 1 } });
    expect(pricesOf("")).toEqual({});
  });
  it("becomes a request only with a model", () => {
    expect(requestOf(FALLBACK)).toBeNull();
    expect(requestOf({ ...FALLBACK, of: PASTED })).toBeNull();
    expect(requestOf({ ...FALLBACK, of: PASTED, config: '{"a":1}' })).toMatchObject({ model: { a: 1 }, choices: {} });
    expect(requestOf({ ...FALLBACK, of: "m", apiOutput: 0.6 })).toMatchObject({ money: { api_price: [0, 0.6] } });
  });
  it("says what is wrong with a config.json", () => {
    expect(compactConfig("{")).toHaveProperty("problem");
    expect(compactConfig("[1]")).toHaveProperty("problem");
    expect(compactConfig('{ "a": 1 }')).toEqual({ config: '{"a":1}' });
  });
});

describe("the slider", () => {
  it("has equal factors at equal ways, and comes back", () => {
    expect(fromPosition(0.5, 1, 100, true)).toBeCloseTo(10);
    for (const log of [true, false]) expect(fromPosition(toPosition(37, 1, 100, log), 1, 100, log)).toBeCloseTo(37);
  });
});

describe("the answer in words", () => {
  it("names devices, cost and targets", () => {
    const { text, level } = planSentence(PLAN, FALLBACK, titleOf);
    expect(text).toBe("6 × H100 serve 5 requests/s of Qwen3-8B for $24.00 an hour, $0.5 for a million tokens; TTFT p95 300 ms of 500 ms, TPOT 20 ms of 50 ms.");
    expect(level).toBe("good");
    expect(layoutText(CANDIDATE)).toBe("TP 2, 3 replicas, int8 weights");
  });
  it("says why nothing does", () => {
    const rejected = [{ name: "l4", layout: CANDIDATE.layout, reason: "weights 141 GB, 24 GB less 10 %: needs TP 8." }];
    expect(planSentence({ ...PLAN, candidates: [], rejected }, FALLBACK, titleOf)).toMatchObject({ level: "bad", text: expect.stringContaining("l4: weights 141 GB, 24 GB less 10 %: needs TP 8.") as string });
  });
  it("gives numbers their units and errors", () => {
    expect(valueText(q(2 ** 31, "bytes"))).toBe("2 GiB");
    expect(valueText(q(2.9e8, "tokens/day"))).toBe("290M tokens/day");
    expect(valueText(q(0.328, "$"))).toBe("$0.328");
    expect([errorText(q(1)), errorText(q(1, "", 0.12)), errorText(q(1, "", null))]).toEqual(["exact", "± 12 %", ""]);
  });
  it("lets the lines of a day cross where the API costs as much", () => {
    const even = breakEven(CANDIDATE, { ...FALLBACK, rate: 1, input: 800, output: 200 });
    const now = 86400 * 1000;
    expect(even?.now).toBe(now);
    const at = even?.tokens.findIndex((_, index) => (even.api[index] ?? 0) >= (even.own[index] ?? 0)) ?? -1;
    expect(even?.tokens[at]).toBeCloseTo(now / 2, -7);
    expect(breakEven({ ...CANDIDATE, money: { ...CANDIDATE.money, api_hour: null } }, FALLBACK)).toBeNull();
  });
});
