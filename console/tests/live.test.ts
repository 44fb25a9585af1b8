import { describe, expect, it } from "vitest";
import { columnsIn, highest, mapLayout, pixel } from "../src/pages/live/canvas";
import { LiveState, rowsOf, type Frame, type Turn } from "../src/pages/live/state";
import { blockText, blocksACell, cellText, classNames, classOf, classesOf, countClasses, kvText, liveSentence, pace, progressText, stepText } from "../src/pages/live/words";

const turn = (number: number, tenant = "acme"): Turn => ({ number, tenant, request_id: `req-${number}`, adapter: "", priority: 0, prompt_tokens: 600, cached_tokens: 0 });
type Told = NonNullable<Frame["steps"]>[number];
const step = (number: number, changes: Partial<Told> = {}): Told => ({
  number, at_s: 100 + number, us: 40_000, floor_us: 20_000, prefill_tokens: 0, decode_rows: 1, decode_context: 9, proposals: 0, free_blocks: 5, rows: [], ...changes });
const running = (number: number, output_tokens = 3) => ({ turn: number, choices: 1, computed_tokens: 512, known_tokens: 1204, output_tokens, blocks: 4 });
const begun = (frame: Partial<Frame> = {}): LiveState => {
  const state = new LiveState();
  state.take("state", { at_s: 0, model: "chat", replica: "a", problem: "", steps: [], turns: [turn(0), turn(1)], running: [], queue: [], totals: null, replicas: [], ...frame });
  return state;
};
const base64 = (...bytes: number[]): string => btoa(String.fromCharCode(...bytes));

describe("the stream", () => {
  it("adds steps, replaces the latest, and repeats who drew one token", () => {
    const state = begun({ steps: [step(1, { singles: [0] }), step(2)] });
    state.take("update", { at_s: 1, steps: [step(2, { us: 90_000, singles: [0, 1] }), step(3, { singles: [], rows: [[1, 4, 3]] })] });
    expect(state.steps.map(({ number, us, cells }) => [number, us, [...cells.keys()]])).toEqual([[1, 40_000, [0]], [2, 90_000, [0, 1]], [3, 40_000, [1]]]);
    state.take("update", { at_s: 2, steps: Array.from({ length: 199 }, (_, index) => step(4 + index)) });
    expect([state.steps.length, state.steps[0]?.number]).toEqual([200, 3]);
  });
  it("tells chunks, tokens and proposals apart", () => {
    const state = begun({ steps: [
      step(1, { prefill_tokens: 512, rows: [[0, 512, 0]] }),
      step(2, { prefill_tokens: 88, proposals: 2, rows: [[0, 90, 1]] }),
      step(3, { proposals: 3, rows: [[0, 4, 3]] }),
      step(4, { prefill_tokens: 40, proposals: 3, rows: [[0, 4, 1], [1, 1, 1], [1, 1, 1]] }),
    ] });
    expect(state.steps.map(({ cells }) => [...cells.values()].map(({ kind }) => kind))).toEqual([["chunk"], ["chunk"], ["accepted"], ["rejected", "one"]]);
    expect(state.steps.map(({ cells }) => [...cells.values()].map(cellText)[0])).toEqual(
      ["512 tokens of its prompt", "90 tokens of its prompt, then its first token", "3 tokens, 2 of 3 proposals kept", "1 token, none of 3 proposals kept"]);
  });
  it("forgets what another engine process told", () => {
    const state = begun({ steps: [step(7)], running: [running(0)] });
    state.take("state", { at_s: 9, replica: "b", problem: "", steps: [step(1)], turns: [], running: [] });
    expect([state.replica, state.steps.map(({ number }) => number), state.turns.size, state.running]).toEqual(["b", [1], 0, []]);
  });
  it("changes runs of blocks only", () => {
    const state = begun({ blocks: { blocks: 4, tenants: ["acme"], tiers: [], runs: [{ first: 0, states: base64(0, 1, 2, 2), owners: base64(255, 0, 0, 0) }] } });
    state.take("update", { at_s: 1, blocks: { blocks: 4, tenants: ["acme", "globex"], tiers: [], runs: [{ first: 2, states: base64(131), owners: base64(1) }] } });
    expect([[...state.states], [...state.owners]]).toEqual([[0, 1, 131, 2], [255, 0, 1, 0]]);
    expect([...countClasses(classesOf(state, "tenant"))].slice(0, 3)).toEqual([1, 2, 1]);
  });
});

describe("the grid", () => {
  it("has what runs first, then what has ended within the steps shown", () => {
    const state = begun({ turns: [0, 1, 2, 3].map((number) => turn(number)), running: [running(3), running(1)], steps: [step(1, { singles: [0] }), step(2, { singles: [2, 3] })] });
    expect(rowsOf(state, 9).map((row) => row.turn)).toEqual([1, 3, 2, 0]);
    expect(rowsOf(state, 9, 1).map((row) => row.turn)).toEqual([1, 3, 2]);
    expect(rowsOf(state, 1)).toHaveLength(1);
  });
  it("fits the width, and is not flattened by one slow step", () => {
    expect([columnsIn(1000), columnsIn(240), columnsIn(0)]).toEqual([200, 120, 1]);
    expect(highest(begun({ steps: [...Array.from({ length: 99 }, (_, index) => step(index + 1)), step(100, { us: 9e6 })] }).steps)).toBe(40_000);
  });
});

describe("the map", () => {
  it("fits any number of blocks", () => {
    for (const [blocks, width] of [[100_000, 1100], [32_768, 360], [64, 1100], [1, 10]] as const) {
      const { side, columns, lines } = mapLayout(blocks, width);
      expect(columns * lines).toBeGreaterThanOrEqual(blocks);
      expect(columns * side).toBeLessThanOrEqual(Math.max(width, side));
      expect(lines * side).toBeLessThan(700);
    }
  });
  it("names each class", () => {
    expect(classNames("tenant", ["acme"])[classOf(2, 0, "tenant", 1)]).toBe("acme");
    expect(classNames("tenant", ["acme"])[classOf(2, 254, "tenant", 1)]).toBe("other tenants");
    expect(classNames("tenant", ["acme"])[classOf(2, 255, "tenant", 1)]).toBe("nobody's");
    expect(classNames("tenant", ["acme"])[classOf(10, 0, "tenant", 1)]).toBe("adapter weights");
    const tiers = [{ name: "memory", blocks: 3, used_bytes: 1, capacity_bytes: 9 }, { name: "disk", blocks: 1, used_bytes: 1, capacity_bytes: 9 }];
    const map = { states: Uint8Array.of(0, 1, 2, 10), owners: Uint8Array.of(255, 0, 0, 255), tenants: ["acme"], tiers };
    const named = classNames("tier", [], tiers);
    expect([...classesOf(map, "tier")].map((each) => named[each])).toEqual(
      ["free on the device", "cached on the device", "held on the device", "adapter weights", "tier memory", "tier memory", "tier memory", "tier disk"]);
    expect([classesOf(map, "reuse").length, blocksACell(tiers), blocksACell([{ ...tiers[0]!, blocks: 50_000 }])]).toEqual([4, 1, 3]);
    expect(classNames("reuse", [])[classOf(128 + 7, 0, "reuse", 0)]).toBe("17 and more");
    expect(classNames("age", [])[classOf(1 + (3 << 4), 0, "age", 0)]).toBe("idle from 1 min");
    expect(classNames("age", [])[classOf(1, 0, "age", 0)]).toBe("idle less than 1 s");
    expect(blockText(128 + 4, 0, ["acme"])).toBe("shared by 3-4 of acme; the prefix cache names it");
    expect(blockText(1 + (2 << 4), 0, ["acme"])).toBe("kept by the prefix cache of acme, idle for 10 s or more");
    expect(kvText({ kv_blocks: 100, free_blocks: 60, cached_blocks: 20 })).toBe("100 blocks: 40 held (40 %), 20 kept by the prefix cache, 40 empty.");
  });
  it("paints in the screen's byte order", () => expect(pixel("#0b6e99").toString(16)).toBe("ff996e0b"));
});

describe("words", () => {
  it("say how the replica is", () => {
    const busy = begun({ running: [running(0), running(1)], steps: [step(1, { us: 41_000, floor_us: 31_500 })], queue: [
      { tenant: "globex", priority: 0, reason: "blocks", sequences: 3, tokens: 9, oldest_s: 2 }, { tenant: "acme", priority: 0, reason: "step", sequences: 1, tokens: 9, oldest_s: 9 }] });
    expect(liveSentence(busy, 110)).toEqual({ text: "2 sequences run at 41 ms a step, 1.3 × the floor; 3 of globex wait for KV blocks, 4 wait in all.", level: "warn" });
    expect(liveSentence(begun({ steps: [step(1)] }), 113)?.text).toBe("Nothing runs; the last step was 12 s ago.");
    expect(liveSentence(begun(), 1)?.text).toBe("Nothing has run yet.");
    expect(liveSentence(begun({ problem: "encoders keep no records" }), 1)?.text).toBe("Nothing is known of the steps of a: encoders keep no records.");
    expect(liveSentence(new LiveState(), 1)).toBeUndefined();
  });
  it("tell progress, paces and steps", () => {
    expect([progressText(running(0, 0)), progressText(running(0, 12))]).toEqual(["512 of 1,204 in", "12 out"]);
    expect(pace([])).toEqual({ seconds: null, times: null });
    const [one] = begun({ steps: [step(1204, { prefill_tokens: 512, floor_us: 0 })] }).steps;
    expect(one && stepText(one)).toBe("Step 1,204: 40 ms, floor not known; 512 prompt tokens, 1 decode");
  });
});
