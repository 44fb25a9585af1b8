import { describe, expect, it } from "vitest";
import { bytes, compact, count, csv, duration, money, number, onAxis, percent, relative, ticks, withUnit, sinceText } from "../src/lib/format";

describe("numbers", () => {
  it("say 0 where it is 0 and - where it is unknown", () => {
    expect([number(0), number(null), number(NaN), percent(0), bytes(undefined), money(null), duration(0)]).toEqual(
      ["0", "-", "-", "0 %", "-", "-", "0 s"]);
  });
  it("have three digits, and all digits before the point", () => {
    expect([number(0.3137), number(2.941), number(1204.4), number(0.00012)]).toEqual(["0.314", "2.94", "1,204", "0.00012"]);
    expect([compact(9_999), compact(12_345), compact(4.1e6)]).toEqual(["9,999", "12.3k", "4.1M"]);
  });
  it("say no digits of a share that is next to nothing, but on an axis", () => {
    expect([percent(0.000061), percent(0.001), percent(0.0034), percent(1)]).toEqual(["< 0.1 %", "0.1 %", "0.34 %", "100 %"]);
    expect([onAxis(0.0005, "share"), onAxis(1, "ratio"), onAxis(0, "share")]).toEqual(["0.05 %", "100 %", "0 %"]);
  });
  it("carry their unit", () => {
    expect([withUnit(0.41, "share"), withUnit(31, "ms"), withUnit(3, "tokens/s"), withUnit(null, "s")]).toEqual(
      ["41 %", "31 ms", "3 tokens/s", "-"]);
    expect([bytes(0), bytes(1536), bytes(400 * 2 ** 20)]).toEqual(["0 B", "1.5 KiB", "400 MiB"]);
    expect([money(0.0021), money(12.5), money(0)]).toEqual(["$0.0021", "$12.50", "$0.00"]);
    expect([count(1, "token"), count(1204, "token"), count(2, "query", "queries")]).toEqual(["1 token", "1,204 tokens", "2 queries"]);
  });
});

describe("durations", () => {
  it.each([
    [0.00085, "850 µs"], [0.031, "31 ms"], [0.9999, "1 s"], [2.94, "2.94 s"], [99.9, "99.9 s"], [99.99, "1 min 40 s"],
    [250, "4 min 10 s"], [3599.9, "1 h"], [11100, "3 h 5 min"], [187200, "2 d 4 h"],
  ])("%d s is %s", (seconds, text) => expect(duration(seconds)).toBe(text));
  it("say since when something is so", () => {
    const at = new Date(2026, 10, 27, 14, 2).getTime() / 1000;
    expect([sinceText("Slow: 40 % miss.", at, at + 60), sinceText("1 of 2 take requests.", at, at + 60), sinceText("All well.", null, at)]).toEqual(
      ["Slow since 14:02: 40 % miss.", "1 of 2 take requests, since 14:02.", "All well."]);
    expect(sinceText("Down.", at, at + 90_000)).toBe("Down, since 2026-11-27 14:02.");
  });
  it("are told from now", () => {
    expect([relative(100, 101), relative(100, 160), relative(100, 7400), relative(160, 100)]).toEqual(
      ["just now", "1 min ago", "2 h ago", "in 1 min"]);
  });
});

describe("axis marks", () => {
  it.each([[2.94, [0, 0.5, 1, 1.5, 2, 2.5]], [0.031, [0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03]], [0, [0]]])(
    "to %d are round", (end, marks) => expect(ticks(end)).toEqual(marks));
});

describe("CSV", () => {
  it("quotes what must be quoted and disarms formulas, not numbers", () => {
    expect(csv(["a", "b"], [['x,"y"', -1], ["=1+1", null]])).toBe('a,b\r\n"x,""y""",-1\r\n\'=1+1,\r\n');
  });
});
