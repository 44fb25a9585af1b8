// The body of a request from settings and turns, and what is wrong with settings.
import type { Settings, Turn } from "./conversation";

/** A JSON object. */
export type Json = Record<string, unknown>;

export interface Range {
  label: string;
  min?: number;
  max?: number;
  /** The smallest value itself is not allowed. */
  above?: boolean;
  whole?: boolean;
  what: string;
}

/** Parameters that are numbers, as the API bounds them. */
export const NUMBERS = {
  temperature: { label: "Temperature", min: 0, max: 2, what: "0 takes the likeliest token, 2 is wild" },
  max_tokens: { label: "Max tokens", min: 1, whole: true, what: "of the answer, reasoning included" },
  top_p: { label: "Top p", min: 0, max: 1, above: true, what: "the likeliest tokens that make up this share" },
  top_k: { label: "Top k", min: -1, whole: true, what: "the k likeliest; 0 or -1: all" },
  min_p: { label: "Min p", min: 0, max: 1, what: "at least this share of the likeliest" },
  seed: { label: "Seed", whole: true, what: "the same seed gives the same answer" },
  repetition_penalty: { label: "Repetition penalty", min: 0, max: 100, above: true, what: "1 is none" },
  presence_penalty: { label: "Presence penalty", min: -2, max: 2, what: "for words that are there" },
  frequency_penalty: { label: "Frequency penalty", min: -2, max: 2, what: "for each time they are there" },
} as const satisfies Partial<Record<keyof Settings, Range>>;
export type NumberName = keyof typeof NUMBERS;

export const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

export function rangeText(range: Range): string {
  if (range.min === undefined) return range.whole ? "a whole number" : "a number";
  const low = range.above ? `above ${range.min}` : `${range.min}`;
  return range.max === undefined ? `${low} or more` : `${low} to ${range.max}`;
}

/** What is wrong with a number that was typed; null where nothing is. Empty is the model's default. */
export function numberProblem(text: string, range: Range): string | null {
  if (!text.trim()) return null;
  const value = Number(text);
  const low = range.min !== undefined && (range.above ? value <= range.min : value < range.min);
  const whole = !range.whole || Number.isSafeInteger(value);
  if (Number.isFinite(value) && whole && !low && !(range.max !== undefined && value > range.max)) return null;
  const kind = range.whole ? "A whole number" : "A number";
  return range.min === undefined ? `${kind} is needed.` : `${kind} is needed, ${rangeText(range)}.`;
}

const isObject = (value: unknown): value is Json => typeof value === "object" && value !== null && !Array.isArray(value);

function parsed(text: string): { value?: unknown; problem?: string } {
  try {
    return { value: JSON.parse(text) as unknown };
  } catch (error) {
    return { problem: `This is not JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}

/** Tools as the API takes them, from a list of tools or of functions. */
export function toolsOf(text: string): { tools?: Json[]; problem?: string } {
  if (!text.trim()) return {};
  const { value, problem } = parsed(text);
  if (problem) return { problem };
  const list: unknown[] = Array.isArray(value) ? value : [value];
  const tools: Json[] = [];
  for (const [index, each] of list.entries()) {
    const definition = isObject(each) && isObject(each["function"]) ? each["function"] : each;
    if (!isObject(definition) || typeof definition["name"] !== "string" || !/^[\w-]{1,64}$/.test(definition["name"])) {
      return { problem: `Function ${index + 1} needs a "name" of at most 64 letters, digits, _ and -.` };
    }
    if (definition["parameters"] !== undefined && !isObject(definition["parameters"])) {
      return { problem: `"parameters" of ${definition["name"]} must be a JSON schema, an object.` };
    }
    tools.push({ type: "function", function: definition });
  }
  if (tools.length > 128) return { problem: "At most 128 functions." };
  return tools.length ? { tools } : {};
}

/** The response format of a schema, or of a whole `json_schema` with name and schema. */
export function formatOf(text: string): { format?: Json; problem?: string } {
  if (!text.trim()) return {};
  const { value, problem } = parsed(text);
  if (problem) return { problem };
  if (!isObject(value)) return { problem: "A JSON schema is an object, such as {\"type\": \"object\", \"properties\": {…}}." };
  const whole = typeof value["name"] === "string" && isObject(value["schema"]);
  return { format: { type: "json_schema", json_schema: whole ? value : { name: "answer", strict: true, schema: value } } };
}

/** The first thing that is wrong with settings. */
export function settingsProblem(settings: Settings): string | null {
  for (const [name, range] of Object.entries(NUMBERS) as [NumberName, Range][]) {
    const problem = numberProblem(settings[name], range);
    if (problem) return `${range.label}: ${problem}`;
  }
  const { problem: tools } = toolsOf(settings.tools);
  if (tools) return `Tools: ${tools}`;
  const { problem: schema } = formatOf(settings.schema);
  return schema ? `Schema: ${schema}` : null;
}

/** Messages of the API. Reasoning is not sent back. */
export function messagesOf(system: string, turns: Turn[]): Json[] {
  const messages: Json[] = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "user") messages.push({ role: "user", content: turn.text });
    else if (turn.role === "tool") messages.push({ role: "tool", tool_call_id: turn.callId, content: turn.text });
    else {
      const calls = turn.calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
      messages.push({ role: "assistant", content: turn.text || (calls.length ? null : ""), ...(calls.length ? { tool_calls: calls } : {}) });
    }
  }
  return messages;
}

/** Body of the request for the next answer; `opening` is the beginning of the answer, which the model goes on from. */
export function bodyOf(settings: Settings, turns: Turn[], opening = ""): Json {
  const body: Json = { model: settings.model, messages: messagesOf(settings.system, turns) };
  for (const name of Object.keys(NUMBERS) as NumberName[]) {
    if (settings[name].trim()) body[name] = Number(settings[name]);
  }
  const stop = settings.stop.split("\n").filter(Boolean);
  if (stop.length) body["stop"] = stop;
  if (settings.reasoning_effort) body["reasoning_effort"] = settings.reasoning_effort;
  if (settings.logprobs) Object.assign(body, { logprobs: true, top_logprobs: Number(settings.logprobs) });
  const { tools } = toolsOf(settings.tools);
  if (tools) body["tools"] = tools;
  const { format } = formatOf(settings.schema);
  if (format) body["response_format"] = format;
  if (opening) {
    (body["messages"] as Json[]).push({ role: "assistant", content: opening });
    Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  }
  if (settings.stream) Object.assign(body, { stream: true, stream_options: { include_usage: true } });
  return body;
}
