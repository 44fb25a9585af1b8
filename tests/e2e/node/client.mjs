// Uses a running server through OpenAI's client for Node: node client.mjs URL KEY
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI, { toFile } from "openai";

const [url, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const model = "kvarn-demo";
const messages = [{ role: "user", content: "What is Kvarn?" }];

test("models are listed", async () => {
  const ids = [];
  for await (const each of client.models.list()) ids.push(each.id);
  assert.ok(ids.includes(model));
});

test("a chat is answered, and streamed as the same text", async () => {
  const whole = await client.chat.completions.create({ model, messages, max_tokens: 24, temperature: 0 });
  const stream = await client.chat.completions.create({
    model, messages, max_tokens: 24, temperature: 0, stream: true, stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.ok(text.length > 0);
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("a text is continued", async () => {
  const done = await client.completions.create({ model, prompt: "Kvarn is", max_tokens: 5 });
  assert.equal(done.usage.completion_tokens, 5);
});

test("texts are embedded", async () => {
  const made = await client.embeddings.create({ model: "minilm", input: ["a mill", "a sea"] });
  assert.equal(made.data.length, 2);
  assert.equal(made.data[0].embedding.length, 384);
});

test("an unknown model is the client's NotFoundError", async () => {
  await assert.rejects(client.chat.completions.create({ model: "none", messages }), OpenAI.NotFoundError);
});

test("a tool call can be demanded", async () => {
  const tools = [{
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  }];
  const answer = await client.chat.completions.create({
    model, messages: [{ role: "user", content: "What is the weather in Oslo?" }], tools, tool_choice: "required",
    max_tokens: 64, temperature: 0,
  });
  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.equal(typeof JSON.parse(call.function.arguments), "object");
});

test("a stored chat is listed, read and deleted", async () => {
  const made = await client.chat.completions.create({ model, messages, max_tokens: 8, store: true, metadata: { of: "node" } });
  const found = await client.chat.completions.retrieve(made.id);
  assert.equal(found.id, made.id);
  const ids = [];
  for await (const each of client.chat.completions.list({ metadata: { of: "node" } })) ids.push(each.id);
  assert.ok(ids.includes(made.id));
  assert.equal((await client.chat.completions.delete(made.id)).deleted, true);
  await assert.rejects(client.chat.completions.retrieve(made.id), OpenAI.NotFoundError);
});

test("a response goes on from the one before, and is streamed as events", async () => {
  const first = await client.responses.create({ model, input: "What is Kvarn?", max_output_tokens: 16 });
  assert.ok(first.output_text.length > 0);
  const stream = await client.responses.create({
    model, input: "And a mill?", previous_response_id: first.id, max_output_tokens: 16, stream: true,
  });
  const types = [];
  let text = "";
  let last = null;
  for await (const event of stream) {
    types.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  assert.equal(types[0], "response.created");
  assert.ok(["response.completed", "response.incomplete"].includes(last.type));
  assert.equal(text, last.response.output[0].content[0].text);
  assert.equal((await client.responses.retrieve(last.response.id)).previous_response_id, first.id);
});

test("a conversation keeps its items", async () => {
  const conversation = await client.conversations.create({ metadata: { of: "node" } });
  await client.responses.create({ model, input: "Hello", conversation: conversation.id, max_output_tokens: 16 });
  const kinds = [];
  for await (const item of client.conversations.items.list(conversation.id, { order: "asc" })) kinds.push(item.role);
  assert.deepEqual(kinds, ["user", "assistant"]);
  assert.equal((await client.conversations.delete(conversation.id)).deleted, true);
});

test("a batch is worked off", async () => {
  const line = (id) => JSON.stringify({
    custom_id: id, method: "POST", url: "/v1/chat/completions", body: { model, messages, max_tokens: 4 },
  });
  const file = await client.files.create({
    file: await toFile(Buffer.from(`${line("a")}\n${line("b")}\n`), "in.jsonl"), purpose: "batch",
  });
  let batch = await client.batches.create({
    input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h",
  });
  const deadline = Date.now() + 60_000;
  while (batch.status !== "completed") {
    assert.ok(Date.now() < deadline && batch.status !== "failed", JSON.stringify(batch));
    await new Promise((wake) => setTimeout(wake, 100));
    batch = await client.batches.retrieve(batch.id);
  }
  const text = await (await client.files.content(batch.output_file_id)).text();
  const ids = text.trim().split("\n").map((each) => JSON.parse(each).custom_id).sort();
  assert.deepEqual(ids, ["a", "b"]);
});

test("a text is moderated", async () => {
  const made = await client.moderations.create({ input: "What a fine day." });
  assert.equal(made.results.length, 1);
  assert.equal(made.results[0].flagged, false);
});

test("files are put into a vector store and found by their meaning", async () => {
  const store = await client.vectorStores.create({ name: "handbook" });
  const texts = {
    "trains.md": "The night train leaves from platform nine.",
    "bread.md": "Bread is baked from flour, water and yeast.",
  };
  const files = await Promise.all(Object.entries(texts).map(([name, text]) => toFile(Buffer.from(text), name)));
  const batch = await client.vectorStores.fileBatches.uploadAndPoll(store.id, { files });
  assert.equal(batch.status, "completed");
  const found = [];
  for await (const hit of client.vectorStores.search(store.id, { query: "railway departure" })) found.push(hit);
  assert.equal(found[0].filename, "trains.md");
  assert.equal(found[0].content[0].text, texts["trains.md"]);
  const page = await client.vectorStores.files.list(store.id);
  assert.equal(page.data.length, 2);
  const gone = await client.vectorStores.files.delete(page.data[0].id, { vector_store_id: store.id });
  assert.equal(gone.deleted, true);
  assert.equal((await client.vectorStores.delete(store.id)).deleted, true);
});
