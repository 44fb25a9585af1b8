// Commands for a shell, to copy: they run as they are where the key is in OPENAI_API_KEY.
import { root } from "./api";
import { session } from "./session";

/** A word of a POSIX shell that stands for the text. */
export function shellQuoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** The header with the key, as the shell completes it. */
export const KEY_HEADER = '-H "Authorization: Bearer $OPENAI_API_KEY"';

/** A curl line that sends JSON, or what a text of options says. `open`: the server asks for no key. */
export function curlLine(url: string, given: Record<string, unknown> | string, open: boolean): string {
  const rest = typeof given === "string" ? given : `-H 'Content-Type: application/json' -d ${shellQuoted(JSON.stringify(given))}`;
  return ["curl", url, ...(open ? [] : [KEY_HEADER]), rest].join(" ");
}

/** A request to this server, to begin with. */
export function exampleCurl(path: string, given: Record<string, unknown> | string): string {
  return curlLine(`${root}${path}`, given, session.value?.open ?? false);
}

export function exampleChat(model = ""): string {
  return exampleCurl("v1/chat/completions", { model: model || "MODEL", messages: [{ role: "user", content: "Hello" }] });
}
