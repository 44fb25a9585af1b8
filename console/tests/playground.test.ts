import { describe, expect, it } from "vitest";
import { emptyDraft, surprise, textOf, tokensPerSecond, withChunk, type Chunk, type Draft } from "../src/pages/playground/answer";
import { NO_SETTINGS, before, newConversation, openCalls, withCopy, type Conversation, type Turn } from "../src/pages/playground/conversation";
import { firstModel, generating, type Model } from "../src/pages/playground/models";
import { NUMBERS, bodyOf, formatOf, numberProblem, settingsProblem, toolsOf } from "../src/pages/playground/request";
import { asCurl, asPython, asTest, python } from "../src/pages/playground/snippets";
import { MOST_CHARACTERS, list, load, remove, save } from "../src/pages/playground/storage";
import { forgetChats, type Keeping } from "../src/lib/kept-chats";

const SETTINGS = { ...NO_SETTINGS, model: "chat" };
const asked = (text: string): Turn => ({ id: `u-${text}`, role: "user", text });
const CALL = { id: "c1", name: "weather", arguments: "{}" };
const answered = (text: string, calls = [CALL].slice(1)): Turn => ({ id: `a-${text}`, role: "assistant", text, reasoning: "hm", calls, figures: null });

describe("a request", () => {
  it("has only what was set", () => {
    expect(bodyOf(SETTINGS, [asked("Hi")])).toEqual({
      model: "chat", messages: [{ role: "user", content: "Hi" }], stream: true, stream_options: { include_usage: true } });
    expect(bodyOf({ ...SETTINGS, stream: false, temperature: "0", stop: "a\n\nb", logprobs: "0", system: "Be brief." }, [])).toEqual({
      model: "chat", messages: [{ role: "system", content: "Be brief." }], temperature: 0, stop: ["a", "b"], logprobs: true, top_logprobs: 0 });
  });
  it("sends calls with their results and no reasoning", () => {
    const turns: Turn[] = [asked("Hi"), answered("", [CALL]), { id: "t", role: "tool", callId: "c1", name: "weather", text: "21" }];
    expect(bodyOf(SETTINGS, turns)["messages"]).toEqual([
      { role: "user", content: "Hi" },
      { role: "assistant", content: null, tool_calls: [{ id: "c1", type: "function", function: { name: "weather", arguments: "{}" } }] },
      { role: "tool", tool_call_id: "c1", content: "21" },
    ]);
  });
  it("goes on from an opening", () => {
    expect(bodyOf(SETTINGS, [asked("Hi")], "Well")).toMatchObject({
      messages: [{ role: "user" }, { role: "assistant", content: "Well" }], continue_final_message: true, add_generation_prompt: false });
  });
});

describe("settings", () => {
  it.each([["0", null], ["", null], ["2", null], ["2.1", "A number is needed, 0 to 2."], ["x", "A number is needed, 0 to 2."]])(
    "temperature %s: %s", (text, problem) => expect(numberProblem(text, NUMBERS.temperature)).toBe(problem));
  it("have open and whole ranges", () => {
    expect(numberProblem("0", NUMBERS.top_p)).toBe("A number is needed, above 0 to 1.");
    expect(numberProblem("1.5", NUMBERS.max_tokens)).toBe("A whole number is needed, 1 or more.");
    expect(numberProblem("-7", NUMBERS.seed)).toBeNull();
  });
  it("take functions, tools, and a schema with or without its name", () => {
    const tools = [{ type: "function", function: { name: "f" } }];
    expect([toolsOf('{"name": "f"}').tools, toolsOf(JSON.stringify(tools)).tools, toolsOf(" ").tools]).toEqual([tools, tools, undefined]);
    expect(formatOf('{"type": "object"}').format).toEqual({ type: "json_schema", json_schema: { name: "answer", strict: true, schema: { type: "object" } } });
    expect(formatOf('{"name": "n", "schema": {}}').format).toEqual({ type: "json_schema", json_schema: { name: "n", schema: {} } });
  });
  it("say what is wrong", () => {
    expect(toolsOf('[{"name": "a b"}]').problem).toMatch(/^Function 1 needs a "name"/);
    expect(formatOf("[]").problem).toMatch(/object/);
    expect(settingsProblem({ ...SETTINGS, tools: "{" })).toMatch(/^Tools: This is not JSON/);
    expect(settingsProblem(SETTINGS)).toBeNull();
  });
});

describe("an answer", () => {
  const chunk = (delta: object, rest: object = {}): Chunk => ({ choices: [{ delta, ...rest }] });
  const of = (chunks: [Chunk, number][]): Draft => chunks.reduce((draft, [one, at]) => withChunk(draft, one, at), emptyDraft());
  it("is put together from chunks, with the times at which they came", () => {
    const draft = of([
      [chunk({ role: "assistant", content: "" }), 0.1], [chunk({ reasoning: "hm" }), 0.2], [chunk({ content: "A" }), 0.5],
      [chunk({ content: "B" }, { finish_reason: "stop" }), 1], [{ choices: [], usage: { prompt_tokens: 5, completion_tokens: 9 } }, 1.1],
    ]);
    expect(draft).toMatchObject({ text: "AB", reasoning: "hm", first_s: 0.2, last_s: 1, outputTokens: 9, inputTokens: 5, cachedTokens: null, finish: "stop" });
    expect(draft.cells.map(([at]) => at)).toEqual([0.2, 0.5, 1]);
    expect(tokensPerSecond(draft)).toBe(10);
    expect(tokensPerSecond(emptyDraft())).toBeNull();
  });
  it("joins calls that come in pieces", () => {
    const call = (part: object): Chunk => chunk({ tool_calls: [part] });
    const { calls } = of([[call({ index: 0, id: "c1", function: { name: "f", arguments: '{"a"' } }), 1], [call({ index: 0, function: { arguments: ": 1}" } }), 2]]);
    expect(calls).toEqual([{ id: "c1", name: "f", arguments: '{"a": 1}' }]);
  });
  it("joins tokens of one character, and none of half a character", () => {
    const [first, second] = [[0xc3], [0xbc]].map((bytes) => ({ text: "\ufffd", logprob: 0, bytes }));
    expect([textOf([first!, second!]), textOf([first!]), textOf([{ text: "ü", logprob: 0, bytes: null }])]).toEqual(["ü", null, "ü"]);
  });
  it("is shaded by its probabilities", () => {
    expect([0, -0.2, -1, -5].map((logprob) => surprise({ logprob }))).toEqual([0, 1, 2, 3]);
  });
});

describe("a conversation", () => {
  it("waits for the results of all calls", () => {
    const turns = [asked("Hi"), answered("", [CALL, { ...CALL, id: "c2" }]), { id: "t", role: "tool", callId: "c1", name: "f", text: "" } as Turn];
    expect(openCalls(turns).map(({ id }) => id)).toEqual(["c2"]);
    expect(before(turns, "a-").length).toBe(1);
  });
  it("has at most four columns, each with what was asked", () => {
    let now: Conversation = newConversation("a");
    now = { ...now, columns: now.columns.map((column) => ({ ...column, turns: [asked("Hi")] })) };
    for (const model of ["b", "c", "d", "e"]) now = withCopy(now, model);
    expect(now.columns.map(({ settings, turns }) => [settings.model, turns.length])).toEqual([["a", 1], ["b", 1], ["c", 1], ["d", 1]]);
    expect(new Set(now.columns.flatMap(({ id, turns }) => [id, turns[0]?.id])).size).toBe(8);
  });
});

/** A browser's storage with room for so many entries. */
class Shelf implements Keeping {
  readonly entries = new Map<string, string>();
  constructor(readonly room = Infinity) {}
  get length(): number { return this.entries.size; }
  key(index: number): string | null { return [...this.entries.keys()][index] ?? null; }
  getItem(key: string): string | null { return this.entries.get(key) ?? null; }
  removeItem(key: string): void { this.entries.delete(key); }
  setItem(key: string, value: string): void {
    if (!this.entries.has(key) && this.entries.size >= this.room) throw new Error("QuotaExceededError");
    this.entries.set(key, value);
  }
}

describe("kept conversations", () => {
  const of = (id: number): Conversation => ({ ...newConversation("m"), id: `c${id}`, at: id });
  it("are those of one person, the latest 50", () => {
    const shelf = new Shelf();
    for (let id = 0; id < 52; id++) save(shelf, "ann", of(id));
    save(shelf, "ben", of(99));
    expect(list(shelf, "ann").map(({ id }) => id)).toEqual(Array.from({ length: 50 }, (_, index) => `c${51 - index}`));
    expect([load(shelf, "ben", "c99")?.at, load(shelf, "ann", "c99")]).toEqual([99, null]);
    remove(shelf, "ben", "c99");
    expect(list(shelf, "ben")).toEqual([]);
  });
  it("go when one signs out, and nothing else does", () => {
    const shelf = new Shelf();
    for (const who of ["ann", "ben"]) save(shelf, who, of(1));
    shelf.setItem("kvarn-theme", "dark");
    forgetChats(shelf);
    expect([...shelf.entries.keys()]).toEqual(["kvarn-theme"]);
  });
  it("make room, and say where there is none", () => {
    const shelf = new Shelf(2);
    expect([1, 2, 3].map((id) => save(shelf, "ann", of(id)))).toEqual([true, true, true]);
    expect(list(shelf, "ann").map(({ id }) => id)).toEqual(["c3", "c2"]);
    expect(save(new Shelf(0), "ann", of(1))).toBe(false);
    expect(save(shelf, "ann", { ...of(4), id: "x".repeat(MOST_CHARACTERS) })).toBe(false);
  });
  it("do not fail on what somebody else wrote", () => {
    const shelf = new Shelf();
    for (const text of ["{", "null", "[]", '{"columns": []}']) shelf.setItem(`kvarn-chat:ann:${text}`, text);
    expect(list(shelf, "ann")).toEqual([]);
  });
});

describe("a request as code", () => {
  const server = { url: "http://h/v1", needsKey: false };
  const body = { model: "m", messages: [{ role: "user", content: "it's \"ü\"\n" }], top_k: 3, stream: true, stream_options: { include_usage: true } };
  it("is quoted for the shell", () => {
    expect(asCurl(body, server)).toContain(`it'\\''s`);
    expect(asCurl(body, { ...server, needsKey: true })).toContain('-H "Authorization: Bearer $OPENAI_API_KEY"');
  });
  it("is Python, with extensions in extra_body", () => {
    expect(python({ a: [true, null, 1.5], b: {} })).toBe('{\n    "a": [\n        True,\n        None,\n        1.5,\n    ],\n    "b": {},\n}');
    expect(asPython(body, server)).toContain('    extra_body={\n        "top_k": 3,\n    },\n');
    expect(asPython(body, server)).toContain('"content": "it\'s \\"ü\\"\\n"');
  });
  it("is a test with a seed, temperature 0 and no stream", () => {
    const test = asTest(body, server, "A\n");
    expect(test).toMatch(/temperature=0,\n {8}seed=1,/);
    expect(test).toContain('assert ask() == "A\\n"');
    expect(test).not.toContain("stream");
    expect(asTest(body, server, null)).toContain("assert ask() == ask()");
  });
});

it("the first model is the one that is wanted, else one that is ready", () => {
  const of = (id: string, ready: boolean, kind = "generate", aliases: string[] = []): Model =>
    ({ id, ready, kind, aliases, parent: null, state: "", max_model_len: null, default_sampling_params: null });
  const models = generating([of("embed", true, "embed"), of("a", false), of("b", true, "generate", ["gpt"]), of("c", true)]);
  expect([firstModel(models, ""), firstModel(models, "c"), firstModel(models, "gpt"), firstModel(models, "gone"), firstModel([], "")]).toEqual(["b", "c", "b", "b", ""]);
});
