import { describe, expect, it } from "vitest";
import { changeText, changesText, curves, modelError, probability, quantile, verdict } from "../src/pages/what-if/text";
import type { Side, Simulated } from "../src/pages/what-if/types";

const even = (low: number, high: number) => ({ values: [low, (low + high) / 2, high] });
const side = (ttft: number, tpot: number, within: number, refused = 0): Side => ({
  requests: 100, answered: 100 - refused, refused, failed: 0, ttft_s: even(0, ttft), tpot_s: even(0, tpot), total_s: null,
  within_targets: within, utilisation: null, preemptions: null, cached_share: null, device_hours: null,
});
const simulated = (measured: Side, before: Side, after: Side): Simulated => ({
  measured, before, after, ttft_target_s: 1, tpot_target_s: 0.1, settings: [], notes: [], logs: ["", ""],
});

describe("distributions", () => {
  it("give quantiles and shares that are each other's inverse", () => {
    const of = { values: [0, 1, 4, 9] };
    for (const at of [0, 0.2, 0.5, 0.9, 1]) expect(probability(of, quantile(of, at) ?? NaN)).toBeCloseTo(at);
    expect([probability(of, -1), probability(of, 10), quantile(null, 0.5)]).toEqual([0, 1, null]);
  });
  it("of one value are a step", () => {
    expect([probability({ values: [2] }, 1.9), probability({ values: [2] }, 2)]).toEqual([0, 1]);
  });
  it("share an axis, and one that is missing stays a gap", () => {
    const { seconds, shares } = curves([even(0.1, 0.2), null, even(0.1, 1.6)]);
    expect([seconds[0], seconds.at(-1)]).toEqual([0.1, expect.closeTo(1.6)]);
    expect(shares[0]?.at(-1)).toBe(1);
    expect(shares[1]?.every((each) => each === null)).toBe(true);
    expect(curves([null])).toEqual({ seconds: [], shares: [[]] });
  });
});

describe("the verdict", () => {
  it("says what changes, and how far off the simulation is", () => {
    const { text, level } = verdict(simulated(side(1, 0.1, 0.9), side(1.1, 0.1, 0.9), side(0.2, 0.1, 0.99)), "3 replicas");
    expect(text).toContain("With 3 replicas: TTFT p95 190 ms in place of 1.05 s (82 % shorter)");
    expect(text).toContain("The simulation is 10 % off");
    expect(level).toBe("good");
  });
  it("draws no conclusion from a change within its own error", () => {
    const { text, level } = verdict(simulated(side(1, 0.1, 0.9), side(1.5, 0.1, 0.9), side(1.4, 0.1, 0.91)), "int8 weights");
    expect(text).toContain("no conclusion");
    expect(level).toBe("quiet");
  });
  it("warns where more is refused", () => {
    const { text, level } = verdict(simulated(side(1, 0.1, 0.9), side(1, 0.1, 0.9), side(3, 0.1, 0.9, 40)), "1 replica");
    expect(text).toContain("40 more refused or lost");
    expect(level).toBe("warn");
  });
  it("names no change, and nothing to compare with", () => {
    const none = { ...side(1, 0.1, 0.9), ttft_s: null, tpot_s: null };
    expect(modelError(simulated(none, side(1, 0.1, 1), side(1, 0.1, 1)))).toBeNull();
    expect(verdict(simulated(none, side(1, 0.1, 1), side(1, 0.1, 1)), "").level).toBe("quiet");
    expect([changeText(1, 1.01), changeText(1, 1.5), changeText(1, 3), changeText(null, 1)]).toEqual(["as long", "50 % longer", "3 times as long", "-"]);
  });
  it("has words for the address", () => {
    expect(changesText(new URLSearchParams("replicas=1&whole_prompts=1&kv_cache_dtype=int8&range=1h"))).toBe("1 replica, no chunked prefill, int8 cache");
  });
});
