import { expect, it } from "vitest";
import { errorText, fileState, placeText, scoreParts, storeSentence, storeState, storesSentence, type Store } from "../src/pages/knowledge/text";
import { lineDiff } from "../src/pages/tools/diff";
import { answerTo, byNeed, byResponse, callError, toolLines, toolsSentence, type Approval, type Server, type ServerTool } from "../src/pages/tools/text";
import { citationsOf } from "../src/pages/requests/messages";
import { cacheText } from "../src/pages/requests/words";

const counts = { in_progress: 0, completed: 2, failed: 0, cancelled: 0, total: 2 };
const store: Store = { id: "vs_1", name: "", description: "", status: "completed", usage_bytes: 9, file_counts: counts, created_at: 0, last_active_at: 0, expires_at: null, passages: 5, embedded_by: "mini" };

it("says how stores and files are", () => {
  expect(storesSentence([], false).text).toMatch(/^There is no vector store yet/);
  expect(storesSentence([store], false)).toEqual({ text: "1 store holds 5 passages of 2 files.", level: "good" });
  const failed = { ...store, file_counts: { ...counts, completed: 1, failed: 1 } };
  expect(storesSentence([store, failed], true).text).toBe("The newest 2 stores hold 10 passages of 4 files; 1 file failed.");
  expect(storeSentence({ ...store, embedded_by: null })).toEqual({ text: "All 2 files are found. They have no vectors: only words are compared.", level: "warn" });
  expect(storeSentence({ ...store, file_counts: { ...counts, completed: 1, in_progress: 1 } }).text).toBe("1 file of 2 is being read; the others are found.");
  expect(storeState({ ...store, status: "expired" }).level).toBe("bad");
  expect([fileState({ status: "in_progress" }).text, fileState({ status: "in_progress", progress: 0.5 }).text]).toEqual(["waiting", "reading, 50 %"]);
  expect(errorText({ code: "invalid_file", message: "It is encrypted" })).toBe("It is encrypted. Mend or split the file, and add it again.");
});

it("tells where a passage stands and what gave it its score", () => {
  expect(placeText({ start: 0, end: 940, page: 3, section: "Trains > Tickets" })).toBe("page or row 3 · Trains > Tickets · characters 0 to 940");
  expect(scoreParts({ words: 0, vectors: null, fusion: 1, reranker: null }).map(({ name, value }) => [name, value])).toEqual([["words", 0], ["fusion", 1]]);
});

it("makes the smallest difference of two texts, from which both can be read", () => {
  const [before, after] = ["abcab", "acbb"].map((text) => [...text]) as [string[], string[]];
  const lines = lineDiff(before, after);
  const without = (sign: string): string => lines.filter((line) => line.sign !== sign).map(({ text }) => text).join("");
  expect([without("+"), without("-")]).toEqual(["abcab", "acbb"]);
  expect(lines.filter(({ sign }) => sign === " ")).toHaveLength(3);
  expect([lineDiff([], ["a"]), lineDiff(["a"], [])]).toEqual([[{ sign: "+", text: "a" }], [{ sign: "-", text: "a" }]]);
});

const tool = (name: string, status: ServerTool["status"], description = "Reads."): ServerTool =>
  ({ name, status, description, input_schema: {}, annotations: null, request: null, digest: name, approved: null });

it("shows what waits first, and what of it changed", () => {
  expect(byNeed([tool("a", "approved"), tool("b", "new"), tool("c", "changed")]).map(({ name }) => name)).toEqual(["c", "b", "a"]);
  const changed = { ...tool("a", "changed", "Reads all."), approved: tool("a", "approved") };
  expect(toolLines(changed)).toEqual([{ sign: "-", text: "Reads." }, { sign: "+", text: "Reads all." }, { sign: " ", text: "{}" }]);
  expect(new Set(toolLines(tool("b", "new")).map(({ sign }) => sign))).toEqual(new Set("+"));
  const server = { name: "s", waiting: { a: "changed", b: "new" } } as unknown as Server;
  expect(toolsSentence({ kinds: [], servers: [server] }, 1).text).toBe("2 changed or new tools of 1 server wait for an administrator; 1 call waits for an approval.");
  expect(toolsSentence({ kinds: [], servers: [] }, 0).level).toBe("good");
});

const approval = (id: string, response_id: string, conversation_id: string | null = null): Approval =>
  ({ id, response_id, conversation_id, created_at: 0, model: "m", server_label: "s", name: "t", arguments: "{}", of_project: true });

it("answers all that a response waits for, as the model was asked", () => {
  expect(byResponse([approval("1", "a"), approval("2", "b"), approval("3", "a")]).map((each) => each.length)).toEqual([2, 1]);
  const response = { id: "a", model: "m", instructions: "Be kind.", temperature: null, output: [], tools: [{ type: "clock" }] };
  expect(answerTo(response, [approval("1", "a")], false)).toEqual({
    model: "m", instructions: "Be kind.", tools: [{ type: "clock" }], previous_response_id: "a", background: true,
    input: [{ type: "mcp_approval_response", approval_request_id: "1", approve: false }],
  });
  expect(answerTo(response, [approval("1", "a", "conv")], true)).toMatchObject({ conversation: "conv" });
});

it("reads errors of calls, citations and what the cache did", () => {
  expect(callError('{"type": "http_error", "message": "It took too long."}')).toBe("It took too long.");
  expect(callError('{"content": [{"text": "failed"}]}')).toBe("failed");
  expect([callError("plain"), callError(null)]).toEqual(["plain", ""]);
  const cited = { type: "file_citation", filename: "a.md", start: 0, end: 7 };
  expect(citationsOf([{ content: [{ text: "x", annotations: [cited, cited] }] }])).toEqual([{ source: "a.md", place: "characters 0 to 7" }]);
  expect(citationsOf([{ message: { annotations: [{ url_citation: { url: "https://a" } }] } }])).toEqual([{ source: "https://a", place: "" }]);
  expect([cacheText({}), cacheText({ result: "hit", kind: "exact", age: "0" })]).toEqual(["", "hit (exact), 0 s old"]);
});
