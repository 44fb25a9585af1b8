import { describe, expect, it } from "vitest";
import { readFileSync } from "node:fs";
import { isChunk, others, requestOf } from "../src/pages/requests/agents";
import { CAUSE_WORDS, causeText } from "../src/pages/requests/causes";
import { bodyOf, curlOf, testOf } from "../src/pages/requests/code";
import { folded } from "../src/pages/requests/fold";
import { busySeconds, lanesOf } from "../src/pages/requests/lanes";
import { messagesOf } from "../src/pages/requests/messages";
import { parseSearch, secondsOf } from "../src/pages/requests/search";
import { shared } from "../src/pages/requests/shared";
import type { RequestRow, StepTurn, TurnSteps } from "../src/pages/requests/types";
import { listSentence, modelOf, requestSentence, tokensText } from "../src/pages/requests/words";

const row = (changes: Partial<RequestRow> = {}): RequestRow => ({
  id: "0123456789abcdef", request_id: "req-0123456789abcdef", started_at: 100, total_s: 2, ttft_s: 0.5, status: 200, outcome: "finished",
  error_code: "", reason: "ordinary", cause: "own work", cause_s: 1.9, endpoint: "/v1/chat/completions", model: "chat-8b", model_version: "v3", adapter: "", replica: "a",
  organization: { id: "org", name: "acme" }, project: { id: "proj", name: "support" }, key: null, session: null, user: null, batch_id: null,
  input_tokens: 1204, cached_tokens: 0, output_tokens: 312, cost: 0, ...changes,
});

describe("the search", () => {
  it("takes named filters, and guesses words without a name", () => {
    expect(parseSearch('session:"a b" user:ada >500ms 5xx /v1/responses req-01a2')).toEqual({
      session: "a b", user: "ada", min_total: "0.5", status: "5xx", endpoint: "/v1/responses", id: "req-01a2" });
    for (const id of ["chatcmpl-01a21cc1", "rerank-01a21cc1", "score-01a21cc1", "01a21cc1"]) expect(parseSearch(id)).toEqual({ id });
    for (const text of ["batch_01a2", "batch:batch_01a2"]) expect(parseSearch(text)).toEqual({ batch: "batch_01a2" });
    expect(parseSearch("ttft:>2s slower:1min ci-deploy")).toEqual({ min_ttft: "2", min_total: "60", q: "ci-deploy" });
    expect(parseSearch('"ci deploy" http://x')).toEqual({ q: "http://x" });
    expect(parseSearch("  ")).toEqual({});
  });
  it("reads durations, and nothing else", () => {
    expect(["2", "2s", "250 ms", "1.5min", ".5", "2h", "", "-1"].map(secondsOf)).toEqual([2, 2, 0.25, 90, 0.5, null, null, null]);
  });
});

describe("sentences", () => {
  it("say what a list shows", () => {
    const list = { rows: [row(), row({ total_s: 3, outcome: "failed" })], matching: 23, kept: 1204, order: "slowest", slower: 2, when: "the last hour" };
    expect(listSentence(list)).toMatchObject({ level: "bad",
      text: "23 of 1,204 kept requests of the last hour took 2 s or more; the slowest took 3 s; of the 2 shown, 1 failed." });
    expect(listSentence({ ...list, rows: [row()], matching: 1, slower: null }).text).toBe("1 of 1,204 kept requests of the last hour matches; the slowest took 2 s; none failed.");
    expect(listSentence({ ...list, rows: [row()], matching: 10000, kept: 10000, order: "newest", slower: null }).text).toBe(
      "10,000 or more kept requests of the last hour; of the 1 shown, none failed.");
    expect(listSentence({ ...list, rows: [], matching: 0 }).text).toBe("None of 1,204 kept requests of the last hour matches.");
    expect(listSentence({ ...list, rows: [], matching: 0, kept: 0 }).text).toBe("No request of the last hour is kept.");
  });
  it("say first what became of a request that did not end well", () => {
    const explained = { sentence: "2.1 s of 2.9 s went to waiting.", cause: { code: "queue: slot" } };
    expect(requestSentence(row(), explained)).toEqual({ text: explained.sentence, level: "warn" });
    expect(requestSentence(row({ outcome: "refused", status: 429, error_code: "rate_limit" }), explained).text).toBe("Refused (429 rate_limit). 2.1 s of 2.9 s went to waiting.");
    expect(requestSentence(row({ outcome: "aborted", status: 499 }), explained)).toMatchObject({ level: "warn", text: "The client left before the end. 2.1 s of 2.9 s went to waiting." });
    expect([modelOf(row()), modelOf(row({ model: "unknown" }))]).toEqual(["chat-8b", null]);
  });
  it("have a word for each cause of the server", () => {
    const source = readFileSync(new URL("../../src/kvarn/explain/explanation.py", import.meta.url), "utf8");
    const codes = [.../class CauseCode\(StrEnum\):([^]*?)\n\n\nclass/.exec(source)![1]!.matchAll(/= "(.+?)"/g)].map(([, code]) => code);
    expect(Object.keys(CAUSE_WORDS)).toEqual(codes);
    expect([causeText(row({ cause: "queue: KV blocks", cause_s: 1.44 })), causeText(row({ cause: "" })), causeText(row({ outcome: "refused" }))]).toEqual(["KV blocks 72 %", null, null]);
  });
  it("name tokens", () => {
    expect(tokensText(row())).toBe("1,204 in (0 cached) + 312 out");
  });
});

describe("the waterfall's parts", () => {
  const part = (name: string, begin_s: number, end_s: number) => ({ name, stage: "admission", begin_s, end_s });
  it("are put together where short ones follow one another, and still sum to the total", () => {
    const parts = [part("authenticate", 0, 0.001), part("limits", 0.001, 0.002), part("queue", 0.002, 0.003), part("decode", 0.003, 1.999), part("read", 1.999, 2)];
    const found = folded(parts, 2);
    expect(found.map(({ name }) => name)).toEqual(["2 short parts", "queue", "decode", "read"]);
    expect(found[0]).toMatchObject({ begin_s: 0, end_s: 0.002, detail: "authenticate, limits", parts: parts.slice(0, 2) });
    expect(found.reduce((sum, { begin_s, end_s }) => sum + end_s - begin_s, 0)).toBeCloseTo(2);
  });
});

describe("steps", () => {
  const turn = (request_id: string, prompt_tokens: number): StepTurn => ({ request_id, tenant: "globex", adapter: "", priority: 0, prompt_tokens, cached_tokens: 0, accepted_us: 0 });
  const told: TurnSteps = {
    turns: [turn("a", 4), turn("b-0", 600), turn("", 8)], complete: true, kv_blocks: 9,
    steps: [
      [1, -1e6, 2e6, 0, 512, 0, 0, 0, 0, 5, [[1, 512, 0]]],
      [2, 1e6, 1e6, 4e5, 92, 0, 2, 0, 0, 4, [[0, 4, 1], [1, 88, 1], [2, 1, 1]]],
    ],
  };
  it("have their own tokens, and those of others, the most first", () => {
    const [first, second] = shared(told);
    expect([first?.own, first?.floor, second?.own, second?.floor]).toEqual([null, null, { computed: 4, output: 1 }, 0.4]);
    expect(second?.others.map(({ computed }) => computed)).toEqual([88, 1]);
  });
  it("tell who was there during a part, prompts first, only for the time of the part", () => {
    const events = [{ name: "received", at_s: 0, numbers: {}, turn: 0 }, { name: "engine.accepted", at_s: 10, numbers: {}, turn: 1 }];
    const found = others({ events }, { a: told }, 10, 11.5);
    expect(found.map(({ turn: { request_id }, seconds, prompt }) => [request_id, seconds, prompt])).toEqual([["b-0", 1.5, 600], ["", 0.5, 0]]);
    expect(others({ events }, { a: told }, 20, 21)).toEqual([]);
  });
  it("name requests without what engines add", () => {
    expect(["01a2~1", "01a2-0", "01a2"].map(requestOf)).toEqual(["01a2", "01a2", "01a2"]);
    expect([isChunk(8, 0, 8), isChunk(8, 1, 0), isChunk(8, 4, 20)]).toEqual([true, false, false]);
  });
});

describe("sending it again", () => {
  const detail = { request: row({ user: "o'hara" }), turns: [{ id: "a", model: "chat-8b", max_tokens: 40 }] };
  it("has the prompt where it is kept, and says so where not", () => {
    const prompt = [{ role: "user", content: "it's" }];
    expect(bodyOf(detail, { prompt, answer: null, is_whole: true, source: "sample" })).toEqual({ model: "chat-8b", messages: prompt, max_tokens: 40, user: "o'hara" });
    expect(JSON.stringify(bodyOf(detail))).toContain("the prompt is not kept");
    expect(bodyOf({ ...detail, request: row({ endpoint: "/v1/embeddings" }) })).toMatchObject({ input: "(the prompt is not kept)" });
  });
  it("is quoted for a shell and for Python", () => {
    expect(curlOf(detail, "http://localhost:8000/")).toContain(`o'\\''hara`);
    expect(curlOf(detail, "http://localhost:8000/")).toContain('http://localhost:8000/v1/chat/completions -H "Authorization: Bearer $OPENAI_API_KEY"');
    expect(curlOf(detail, "http://localhost:8000/", undefined, true)).not.toContain("Authorization");
    expect(testOf(detail, "http://localhost:8000/")).toContain("elapsed.total_seconds() < 4");
  });
});

it("messages are read in each API's form", () => {
  expect(messagesOf([{ role: "user", content: [{ type: "text", text: "a" }, { type: "text", text: "b" }] }], "prompt")).toEqual([{ role: "user", text: "a\nb" }]);
  expect(messagesOf([{ index: 0, message: { role: "assistant", content: "yes" } }], "answer")).toEqual([{ role: "assistant", text: "yes" }]);
  expect(messagesOf(["x"], "prompt")).toEqual([{ role: "prompt", text: "x" }]);
  expect(messagesOf("text", "prompt")).toEqual([{ role: "prompt", text: "text" }]);
  expect(messagesOf(null, "prompt")).toEqual([]);
});

it("a session's idle times are cut, its requests keep their lengths", () => {
  const rows = [row({ started_at: 0 }), row({ started_at: 1 }), row({ started_at: 1000, ttft_s: null })];
  expect(busySeconds(rows)).toBe(5);
  const { lanes, cuts, shown } = lanesOf(rows);
  expect(cuts.map(({ seconds }) => seconds)).toEqual([997]);
  expect(shown).toBeCloseTo(5.25);
  expect(lanes.map(({ begin, first, end }) => [begin, first, end].map((share) => Math.round(share * shown * 100) / 100))).toEqual([[0, 0.5, 2], [1, 1.5, 3], [3.25, 5.25, 5.25]]);
});
