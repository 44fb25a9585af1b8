import { describe, expect, it } from "vitest";
import { servedText, changedSettings, gateText, goldenText, kvUse, levelOf, modelSentence, modelsSentence, outcomeText, replicasOf, scoreText } from "../src/pages/models/text";
import type { ComparedAnswers, Golden, ModelDetail, Outcome, Replica } from "../src/pages/models/types";

const golden: Golden = { passed_at: 100, equal: 3, drifted: 0, unanswered: 0, problem: null, action: null };
const replica = (more: Partial<Replica> = {}): Replica => ({
  name: "chat/0", version: 0, fingerprint: "3205", state: "ready", stage: null, progress: null, starts: 1, running: 0, waiting: 0,
  kv_blocks: 100, kv_blocks_free: 60, step_s: null, kernels: null, dtype: null, golden, ...more,
});
const model = (more: Partial<ModelDetail> = {}): ModelDetail => ({
  name: "chat", aliases: [], path: "kvarn-demo", version: 2, fingerprint: "", kind: "generate", max_context_length: 100, state: "ready", ready: true,
  error: null, external: false, autoscaled: false, replicas: [replica()], adapters: [], rollout: null, ...more,
});

describe("the sentence of a model", () => {
  it("says that it answers", () => {
    expect(modelSentence(model()).text).toBe("chat@2 takes requests with 1 replica; it is idle.");
  });
  it("puts a wrong answer before a rollout", () => {
    const wrong = replica({ golden: { ...golden, problem: "token 3 differs", action: "restart" } });
    expect(modelSentence(model({ replicas: [wrong] }))).toEqual({ level: "bad", text: "chat/0 answers golden prompts of chat wrongly: token 3 differs." });
    expect(levelOf(model({ replicas: [wrong] }))).toBe("bad");
  });
  it("tells a rollout's share", () => {
    const rollout = { candidate: "chat@3", phase: "canary", paused: true, share: 0.25, answered: 9 };
    expect(modelSentence(model({ rollout })).text).toBe("chat is being rolled out: chat@3 answers 25 % of the requests, paused.");
  });
  it("tells sleep from failure", () => {
    expect(modelSentence(model({ replicas: [], ready: false })).level).toBe("quiet");
    expect(modelSentence(model({ replicas: [replica({ state: "down" })], ready: false, state: "down" })).level).toBe("warn");
  });
});

it("speaks of the worst model first", () => {
  const down = model({ name: "other", ready: false, state: "down" });
  expect(modelsSentence([model(), down])).toMatchObject({ model: "other", level: "warn" });
  expect(modelsSentence([model(), model({ name: "second", replicas: [], ready: false })]).text).toBe("1 of 2 models take requests; 1 sleeps.");
  expect(modelsSentence([]).text).toContain("No model is served");
});

it("sums the KV blocks of replicas", () => {
  expect(kvUse([replica(), replica({ kv_blocks_free: 100 })])).toBe(0.2);
  expect(kvUse([])).toBeNull();
});

it("names settings that changed, in their sections too", () => {
  const before = { seed: 1, engine: { max_num_seqs: 32, chunk: 512 } };
  expect(changedSettings({ engine: { max_num_seqs: 64, chunk: 512 }, path: "b" }, before))
    .toEqual(["engine.max_num_seqs 64 (was 32)", "path b (was default)", "seed default (was 1)"]);
});

it("reads a number of replicas", () => {
  expect(replicasOf(" 3 ")).toBe(3);
  for (const text of ["", "-1", "1.5", "257", "x"]) expect(replicasOf(text)).toBeNaN();
});

it("says how golden prompts are answered", () => {
  expect(goldenText(golden).text).toBe("as expected");
  expect(goldenText({ ...golden, passed_at: null }).text).toBe("not asked yet");
  expect(goldenText(null).text).toBe("not asked");
});

it("says what became of compared answers", () => {
  const of = (more: Partial<Outcome> = {}): Outcome => ({ failed: false, ttft_s: 0.1, tpot_s: 0.01, completion_tokens: 48, refusal: false, record_id: "", ...more });
  const pair = (more: Partial<ComparedAnswers>): ComparedAnswers => ({ kind: "matched", stable: of(), candidate: of(), equal: null, question: "", stable_right: null, candidate_right: null, ...more });
  expect(outcomeText(of(), null)).toBe("TTFT 100 ms, 10 ms a token, 48 tokens");
  expect([outcomeText(of({ failed: true }), null), outcomeText(null, false)]).toEqual(["failed", "wrong"]);
  expect([
    pair({ candidate: of({ ttft_s: 0.11 }) }), pair({ candidate: of({ ttft_s: null, completion_tokens: 23 }) }), pair({ candidate: of({ refusal: true }) }),
    pair({ kind: "shadowed", equal: true }), pair({ kind: "shadowed", candidate: of({ failed: true }) }),
    pair({ kind: "golden", stable: null, candidate: null, stable_right: true, candidate_right: false }),
  ].map((each) => scoreText(each).text)).toEqual(["+10 % TTFT", "−51 % tokens", "only the new one refuses", "the same tokens", "the new one failed", "the new one is wrong"]);
});

it("says nothing of gates that have seen nothing", () => {
  expect(gateText("+0.0% slower (at least -100.0%), of 0 pairs")).toBe("nothing was seen yet");
  expect(gateText("0 of 24 requests failed")).toBe("0 of 24 requests failed");
  expect(gateText("+0.0% longer (at least -13.7%), of 20 pairs")).toContain("of 20 pairs");
});

it("names the version and its checkpoint", () => {
  expect([servedText({ version: 0, fingerprint: "3205" }), servedText({ version: 3, fingerprint: "" })]).toEqual(["3205", "@3"]);
});
