// A conversation: columns with settings and turns of their own. Nothing here is changed in place.

/** What a column asks for. A field that is empty is left to the model. Numbers stay as they were typed. */
export interface Settings {
  model: string;
  system: string;
  temperature: string;
  top_p: string;
  top_k: string;
  min_p: string;
  max_tokens: string;
  seed: string;
  /** A stop string a line. */
  stop: string;
  repetition_penalty: string;
  presence_penalty: string;
  frequency_penalty: string;
  reasoning_effort: string;
  /** Alternatives of each token: empty for no probabilities at all, `0` to `20`. */
  logprobs: string;
  /** JSON: a list of functions. */
  tools: string;
  /** JSON: a schema that the answer keeps to. */
  schema: string;
  stream: boolean;
}

export const NO_SETTINGS: Settings = {
  model: "", system: "", temperature: "", top_p: "", top_k: "", min_p: "", max_tokens: "", seed: "", stop: "", repetition_penalty: "",
  presence_penalty: "", frequency_penalty: "", reasoning_effort: "", logprobs: "", tools: "", schema: "", stream: true,
};

export interface ToolCall {
  id: string;
  name: string;
  /** JSON, as the model wrote it. */
  arguments: string;
}

/** Figures of an answer, measured in this browser; seconds since it was sent. */
export interface Figures {
  requestId: string;
  model: string;
  ttft_s: number | null;
  total_s: number;
  inputTokens: number | null;
  cachedTokens: number | null;
  outputTokens: number | null;
  /** `stop`, `length`, `tool_calls`, `content_filter`; `stopped` by the reader; `failed`. */
  finish: string;
  warning: string;
}

export interface UserTurn { id: string; role: "user"; text: string }
export interface ToolTurn { id: string; role: "tool"; callId: string; name: string; text: string }
export interface AnswerTurn {
  id: string;
  role: "assistant";
  text: string;
  reasoning: string;
  calls: ToolCall[];
  figures: Figures | null;
}
export type Turn = UserTurn | ToolTurn | AnswerTurn;

export interface Column {
  id: string;
  settings: Settings;
  turns: Turn[];
}

export interface Conversation {
  id: string;
  /** When it was last changed, UNIX seconds. */
  at: number;
  columns: Column[];
}

/** Id under which the server keeps a request, from its `x-request-id`. */
export const keptId = (requestId: string): string => requestId.replace(/^req-/, "");

export const MAX_COLUMNS = 4;

let made = 0;
export function newId(): string {
  made += 1;
  return `${Date.now().toString(36)}${made.toString(36)}${Math.floor(Math.random() * 36 ** 4).toString(36)}`;
}

export function newConversation(model: string): Conversation {
  return { id: newId(), at: 0, columns: [{ id: newId(), settings: { ...NO_SETTINGS, model }, turns: [] }] };
}

/** The first words that were asked. */
export function titleOf(conversation: Conversation): string {
  for (const column of conversation.columns) {
    const asked = column.turns.find((turn) => turn.role === "user");
    if (asked) return asked.text.replace(/\s+/g, " ").trim().slice(0, 80) || "(empty)";
  }
  return "(empty)";
}

export function withColumn(conversation: Conversation, id: string, change: (column: Column) => Column): Conversation {
  return { ...conversation, columns: conversation.columns.map((column) => (column.id === id ? change(column) : column)) };
}

/** One more column, with the settings of the last one and all that was asked so far. */
export function withCopy(conversation: Conversation, model: string): Conversation {
  const last = conversation.columns.at(-1);
  if (!last || conversation.columns.length >= MAX_COLUMNS) return conversation;
  const copy: Column = { id: newId(), settings: { ...last.settings, model }, turns: last.turns.map((turn) => ({ ...turn, id: newId() })) };
  return { ...conversation, columns: [...conversation.columns, copy] };
}

export function withoutColumn(conversation: Conversation, id: string): Conversation {
  return { ...conversation, columns: conversation.columns.filter((column) => column.id !== id) };
}

/** Columns with one of `old` back in its place. */
export function withBack(columns: Column[], old: Column[], id: string): Column[] {
  const at = old.findIndex((column) => column.id === id);
  const back = old[at];
  return !back || columns.length >= MAX_COLUMNS || columns.some((column) => column.id === id) ? columns : columns.toSpliced(at, 0, back);
}

/** Turns before one of them. */
export function before(turns: Turn[], id: string): Turn[] {
  const at = turns.findIndex((turn) => turn.id === id);
  return at < 0 ? turns : turns.slice(0, at);
}

/** Calls of the last answer whose result is not there yet. */
export function openCalls(turns: Turn[]): ToolCall[] {
  const at = turns.findLastIndex((turn) => turn.role === "assistant");
  const answer = turns[at];
  if (answer?.role !== "assistant") return [];
  const given = new Set(turns.slice(at + 1).map((turn) => (turn.role === "tool" ? turn.callId : "")));
  return answer.calls.filter((call) => !given.has(call.id));
}
