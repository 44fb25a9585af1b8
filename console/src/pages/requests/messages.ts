// Messages of a prompt or an answer as text, in whichever API's form they are.

export interface Shown {
  role: string;
  text: string;
}

type Fields = Record<string, unknown>;
const isFields = (value: unknown): value is Fields => typeof value === "object" && value !== null && !Array.isArray(value);

/** Text of a content: a string, or parts with text; what has no text is shown as JSON. */
function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  if (Array.isArray(content)) return content.map((part: unknown) => (isFields(part) && typeof part["text"] === "string" ? part["text"] : textOf(part))).join("\n");
  return content === null || content === undefined ? "" : JSON.stringify(content, null, 2);
}

function messageOf(item: unknown, role: string): Shown {
  if (!isFields(item)) return { role, text: textOf(item) };
  const inner = isFields(item["message"]) ? item["message"] : item;
  const named = typeof inner["role"] === "string" ? inner["role"] : typeof inner["type"] === "string" ? inner["type"] : role;
  const said = textOf(inner["content"] ?? inner["text"]);
  const calls = inner["tool_calls"] ?? (inner["content"] === undefined && inner["text"] === undefined ? inner : undefined);
  const text = [said, calls === undefined || calls === null ? "" : JSON.stringify(calls, null, 2)].filter(Boolean).join("\n");
  return { role: named, text };
}

/** Messages to show, in their order. `role` names those that do not say whose they are. */
export function messagesOf(value: unknown, role: string): Shown[] {
  if (value === null || value === undefined) return [];
  return Array.isArray(value) ? value.map((item: unknown) => messageOf(item, role)) : [messageOf(value, role)];
}
