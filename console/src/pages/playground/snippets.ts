// A request as code that sends it: curl, Python with OpenAI's client, a test for pytest.
import { KEY_HEADER, shellQuoted } from "../../lib/curl";
import type { Json } from "./request";

/** Fields that OpenAI's client does not know: they go into `extra_body`. */
const EXTENSIONS = new Set(["top_k", "min_p", "repetition_penalty", "continue_final_message", "add_generation_prompt"]);

export interface Server {
  /** With `/v1`, without a slash at its end. */
  url: string;
  needsKey: boolean;
}

export function asCurl(body: Json, server: Server): string {
  const key = server.needsKey ? ` \\\n  ${KEY_HEADER}` : "";
  const buffered = body["stream"] ? "-N " : "";
  return `curl ${buffered}${server.url}/chat/completions \\\n  -H 'Content-Type: application/json'${key} \\\n  -d ${shellQuoted(JSON.stringify(body, null, 2))}\n`;
}

/** A value as Python writes it. */
export function python(value: unknown, indent = 0): string {
  const [inner, outer] = ["    ".repeat(indent + 1), "    ".repeat(indent)];
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return pythonText(value);
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[\n${value.map((item) => `${inner}${python(item, indent + 1)},\n`).join("")}${outer}]`;
  }
  if (typeof value === "object") {
    const pairs = Object.entries(value);
    if (!pairs.length) return "{}";
    return `{\n${pairs.map(([key, item]) => `${inner}${pythonText(key)}: ${python(item, indent + 1)},\n`).join("")}${outer}}`;
  }
  return String(value);
}

/** JSON's escapes are Python's, but for characters beyond 16 bits, which JSON.stringify leaves as they are, and lone halves of them. */
function pythonText(text: string): string {
  return JSON.stringify(text).replaceAll("\u2028", "\\u2028").replaceAll("\u2029", "\\u2029").replaceAll("\u007f", "\\x7f");
}

function argumentsOf(body: Json, indent: number): string {
  const known = Object.entries(body).filter(([name]) => !EXTENSIONS.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => EXTENSIONS.has(name)));
  if (Object.keys(extra).length) known.push(["extra_body", extra]);
  const space = "    ".repeat(indent);
  return known.map(([name, value]) => `${space}${name}=${python(value, indent)},\n`).join("");
}

function client(server: Server): string {
  const key = server.needsKey ? "" : `, api_key="none"`;
  return `client = OpenAI(base_url=${pythonText(server.url)}${key})`;
}

export function asPython(body: Json, server: Server): string {
  const ask = `client.chat.completions.create(\n${argumentsOf(body, 1)})`;
  const head = `from openai import OpenAI\n\n${client(server)}${server.needsKey ? "  # reads OPENAI_API_KEY" : ""}\n`;
  if (!body["stream"]) return `${head}answer = ${ask}\nprint(answer.choices[0].message.content)\n`;
  return `${head}for chunk in ${ask}:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)\nprint()\n`;
}

const TEST_SEED = 1;

/** A test that asks with temperature 0 and a seed. `answer`: what must come, where it was made so; else two answers are compared. */
export function asTest(body: Json, server: Server, answer: string | null): string {
  const fixed: Json = { ...body, temperature: 0, seed: body["seed"] ?? TEST_SEED };
  for (const name of ["stream", "stream_options", "logprobs", "top_logprobs"]) delete fixed[name];
  const check =
    answer === null
      ? "def test_answer_is_the_same_again() -> None:\n    assert ask() == ask()\n"
      : `def test_answer_is_as_it_was() -> None:\n    assert ask() == ${pythonText(answer)}\n`;
  return `from openai import OpenAI\n\n${client(server)}${server.needsKey ? "  # reads OPENAI_API_KEY" : ""}\n\n\ndef ask() -> str | None:\n    answer = client.chat.completions.create(\n${argumentsOf(fixed, 2)}    )\n    return answer.choices[0].message.content\n\n\n${check}`;
}
