// Markdown as models write it, read into plain data: nothing of it is ever HTML. What is not known stays text.

export type Inline =
  | { kind: "text" | "code" | "strong" | "emphasis"; text: string }
  | { kind: "link"; text: string; to: string };

export type Block =
  | { kind: "paragraph"; inline: Inline[] }
  | { kind: "heading"; level: number; inline: Inline[] }
  | { kind: "list"; ordered: boolean; start: number; items: Inline[][] }
  | { kind: "code"; language: string; text: string }
  | { kind: "quote"; inline: Inline[] }
  | { kind: "rule" };

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)[^`]*$/;
const ITEM = /^\s{0,8}(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;

/** Blocks of a text. A code block that is not over goes on to the end. */
export function blocksOf(text: string): Block[] {
  const blocks: Block[] = [];
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  let paragraph: string[] = [];
  const close = (): void => {
    const joined = paragraph.join("\n").trim();
    if (joined) blocks.push({ kind: "paragraph", inline: inlineOf(joined) });
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at] ?? "";
    const fence = FENCE.exec(line);
    if (fence) {
      close();
      const mark = fence[1] ?? "```";
      const closing = (one: string): boolean => one.trim().startsWith(mark) && one.trim().replaceAll(mark[0] ?? "`", "") === "";
      const from = at + 1;
      for (at = from; at < lines.length && !closing(lines[at] ?? ""); at++);
      blocks.push({ kind: "code", language: fence[2] ?? "", text: lines.slice(from, at).join("\n") });
      continue;
    }
    const [heading, item] = [HEADING.exec(line), ITEM.exec(line)];
    if (!line.trim()) close();
    else if (RULE.test(line)) { close(); blocks.push({ kind: "rule" }); }
    else if (heading) { close(); blocks.push({ kind: "heading", level: heading[1]?.length ?? 1, inline: inlineOf(heading[2] ?? "") }); }
    else if (item) { close(); at = readList(lines, at, blocks); }
    else if (line.startsWith(">")) { close(); at = readQuote(lines, at, blocks); }
    else paragraph.push(line);
  }
  close();
  return blocks;
}

/** Reads a list that begins in line `at`; gives its last line. */
function readList(lines: string[], at: number, blocks: Block[]): number {
  const first = ITEM.exec(lines[at] ?? "");
  const ordered = first?.[1] !== undefined;
  const items: string[] = [];
  let last = at;
  for (let now = at; now < lines.length; now++) {
    const line = lines[now] ?? "";
    const item = ITEM.exec(line);
    if (item && (item[1] !== undefined) === ordered) items.push(item[2] ?? "");
    else if (item || !line.trim() && !ITEM.test(lines[now + 1] ?? "")) break;
    else if (!line.trim()) continue;
    else if (/^\s/.test(line) && !FENCE.test(line)) items.push(`${items.pop() ?? ""}\n${line.trim()}`);
    else break;
    last = now;
  }
  blocks.push({ kind: "list", ordered, start: Number(first?.[1] ?? 1), items: items.map(inlineOf) });
  return last;
}

function readQuote(lines: string[], at: number, blocks: Block[]): number {
  const quoted: string[] = [];
  let now = at;
  for (; now < lines.length && (lines[now] ?? "").startsWith(">"); now++) quoted.push((lines[now] ?? "").replace(/^>\s?/, ""));
  blocks.push({ kind: "quote", inline: inlineOf(quoted.join("\n")) });
  return now - 1;
}

// Each form ends within 2,000 characters, so that a text of opening marks is read in linear time.
const INLINE =
  /(`+)((?:(?!\1)[^\n]){1,2000}?)\1(?!`)|\*\*(?=\S)([^*\n]{1,2000})\*\*|(?<![\w*])\*(?=[^\s*])([^*\n]{1,2000})\*(?![\w*])|(?<!\w)_(?=\S)([^_\n]{1,2000})_(?!\w)|\[([^\][\n]{1,500})\]\(([^\s()<>]{1,2000})\)/g;

export function inlineOf(text: string): Inline[] {
  const found: Inline[] = [];
  let from = 0;
  const plain = (to: number): void => {
    if (to > from) found.push({ kind: "text", text: text.slice(from, to) });
  };
  for (const match of text.matchAll(INLINE)) {
    const [whole, , code, strong, starred, lined, label, to] = match;
    const piece = pieceOf(code, strong, starred ?? lined, label, to);
    if (!piece) continue;
    plain(match.index);
    found.push(piece);
    from = match.index + whole.length;
  }
  plain(text.length);
  return found;
}

function pieceOf(code?: string, strong?: string, emphasis?: string, label?: string, to?: string): Inline | null {
  if (code !== undefined) return { kind: "code", text: code };
  if (strong !== undefined) return { kind: "strong", text: strong };
  if (emphasis !== undefined) return { kind: "emphasis", text: emphasis };
  const address = safeAddress(to ?? "");
  return address && label !== undefined ? { kind: "link", text: label, to: address } : null;
}

/** An address that may be a link: whole, http or https, without a name and password; else null. */
export function safeAddress(text: string): string | null {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    return url.username || url.password ? null : url.href;
  } catch {
    return null;
  }
}
