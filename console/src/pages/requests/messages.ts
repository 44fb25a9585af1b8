// Messages of a prompt or an answer as text, in whichever API's form they are.
import { number } from "../../lib/format";

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

export interface Citation {
  source: string;
  place: string;
}

/** Sources that an answer cites, each once, in whichever API's form they are: files with the place in their text, and pages of the web. */
export function citationsOf(value: unknown): Citation[] {
  const found = new Map<string, Citation>();
  const look = (part: unknown): void => {
    if (Array.isArray(part)) return part.forEach(look);
    if (!isFields(part)) return;
    const { annotations, content, message } = part;
    [content, message].forEach(look);
    for (const each of Array.isArray(annotations) ? annotations : []) {
      if (!isFields(each)) continue;
      const { filename, start, end, url_citation } = each;
      const page = isFields(url_citation) ? url_citation : each;
      const source = typeof filename === "string" ? filename : typeof page["url"] === "string" ? page["url"] : "";
      const place = typeof start === "number" && typeof end === "number" ? `characters ${number(start)} to ${number(end)}` : "";
      if (source) found.set(`${source} ${place}`, { source, place });
    }
  };
  look(value);
  return [...found.values()];
}

/** Messages to show, in their order. `role` names those that do not say whose they are. */
export function messagesOf(value: unknown, role: string): Shown[] {
  if (value === null || value === undefined) return [];
  return Array.isArray(value) ? value.map((item: unknown) => messageOf(item, role)) : [messageOf(value, role)];
}
