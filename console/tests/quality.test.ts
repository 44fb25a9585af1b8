import { describe, expect, it } from "vitest";
import { byDay, contentText, differenceText, hasDropped, qualitySentence, turnsOf, wilson, type Quality, type Score } from "../src/pages/quality/text";

const score = (value: number, baseline: number | null): Score => ({
  organization: "acme", set_id: "set-1", set_name: "support", set_version: 1, run_id: "run-2", model: "chat", version: "4", score: value, passed: 7, total: 10,
  created_at: 0, baseline_run_id: baseline === null ? null : "run-1", baseline_version: "3", baseline_score: baseline,
});
const told = (more: Partial<Quality>): Quality => ({ scores: [], feedback: [], versions: [], unreviewed: 0, ...more });

describe("the sentence of the quality page", () => {
  it("names the version that dropped and leads to the comparison", () => {
    expect(qualitySentence(told({ scores: [score(0.8, 0.8), score(0.6, 0.8)] }))).toEqual({
      text: "chat@4 scores 60 % on support; 3 had 80 %.", level: "bad", to: "quality?tab=compare&set=set-1&run=run-2&against=run-1",
    });
  });
  it("says what is known and what waits", () => {
    const versions = [{ model: "chat", version: "4", up: 42, down: 8, share_up: 0.84, interval: null, compared_with: null, difference: null }];
    expect(qualitySentence(told({ scores: [score(0.79, 0.8)], versions, unreviewed: 1 })).text)
      .toBe("No score has dropped (1 newest run); 84 % of 50 ratings are good; 1 sample waits for review.");
    expect(qualitySentence(told({ unreviewed: null })).text).toMatch(/^Nothing has been judged yet/);
  });
});

it("takes a score as dropped where the alert does", () => {
  expect([score(0.76, 0.8), score(0.75, 0.8), score(0.1, null)].map(hasDropped)).toEqual([false, true, false]);
});

it("has Wilson's interval", () => {
  const found = wilson(7, 10); // 0.3968 to 0.8922, Brown, Cai, DasGupta 2001
  expect(found?.low).toBeCloseTo(0.3968, 3);
  expect(found?.high).toBeCloseTo(0.8922, 3);
  expect(wilson(0, 10)?.low).toBe(0);
  expect(wilson(0, 0)).toBeNull();
});

it("says whether a difference is one", () => {
  expect(differenceText({ low: 0.02, high: 0.09 })).toEqual({ text: "better: +2 to +9 points", level: "good" });
  expect(differenceText({ low: -0.09, high: -0.02 }).level).toBe("bad");
  expect(differenceText({ low: -0.02, high: 0.09 }).text).toBe("no difference shown: -2 to +9 points");
});

it("sums ratings by day, of one model or all", () => {
  const day = (day_at: number, model: string, up: number): Quality["feedback"][number] => ({ day_at, model, version: "1", up, down: 1, count: up + 1, mean_score: null });
  const days = [day(2, "a", 3), day(1, "a", 1), day(2, "b", 5)];
  expect(byDay(days, "")).toEqual({ times: [1, 2], up: [1, 8], down: [1, 2] });
  expect(byDay(days, "a")).toEqual({ times: [1, 2], up: [1, 3], down: [1, 1] });
});

it("reads what was asked", () => {
  expect(turnsOf({ messages: [{ role: "user", content: [{ type: "text", text: "Hi" }, { type: "image_url" }] }] })).toEqual([{ role: "user", text: "Hi\n[image_url]" }]);
  expect(turnsOf({ prompt: ["Once"] })).toEqual([{ role: "prompt", text: "Once" }]);
  expect(contentText(null)).toBe("");
});
