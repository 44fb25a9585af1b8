import { describe, expect, it } from "vitest";
import { blocksOf, inlineOf, safeAddress, type Block, type Inline } from "../src/pages/playground/markdown";

const words = (text: string): Inline[] => [{ kind: "text", text }];

describe("markdown", () => {
  it("has paragraphs, headings, lists, quotes, rules and code", () => {
    const blocks = blocksOf("# Title\nfirst\nsecond\n\n- one\n- two\n  more\n\n2. b\n3. c\n\n> quoted\n\n---\n```py\nx = 1\n\n# no title\n```\nend");
    expect(blocks).toEqual([
      { kind: "heading", level: 1, inline: words("Title") },
      { kind: "paragraph", inline: words("first\nsecond") },
      { kind: "list", ordered: false, start: 1, items: [words("one"), words("two\nmore")] },
      { kind: "list", ordered: true, start: 2, items: [words("b"), words("c")] },
      { kind: "quote", inline: words("quoted") },
      { kind: "rule" },
      { kind: "code", language: "py", text: "x = 1\n\n# no title" },
      { kind: "paragraph", inline: words("end") },
    ] satisfies Block[]);
  });
  it("shows a code block that is not over", () => {
    expect(blocksOf("```\na")).toEqual([{ kind: "code", language: "", text: "a" }]);
  });
  it("has code, emphasis and links within a line", () => {
    expect(inlineOf("a `**b**` **c** *d* _e_ [f](https://x.org/?a=b)")).toEqual([
      { kind: "text", text: "a " }, { kind: "code", text: "**b**" }, { kind: "text", text: " " }, { kind: "strong", text: "c" }, { kind: "text", text: " " },
      { kind: "emphasis", text: "d" }, { kind: "text", text: " " }, { kind: "emphasis", text: "e" }, { kind: "text", text: " " },
      { kind: "link", text: "f", to: "https://x.org/?a=b" },
    ]);
  });
  it.each(["2 * 3 * 4", "snake_case_name", "a ** b", "[a](b", "**", "`", "__init__.py"])("leaves %s as it is", (text) => {
    expect(inlineOf(text)).toEqual(words(text));
  });
});

describe("hostile markdown", () => {
  it.each([
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[a](javascript:alert(1))", "[a](JaVaScRiPt:alert(1))", "[a](data:text/html,x)",
    "[a](//evil.example)", "[a](/console/api)", "[a](https://user:pw@evil.example)", "[a](vbscript:x)",
  ])("%s is text", (text) => {
    expect(blocksOf(text)).toEqual([{ kind: "paragraph", inline: words(text) }]);
  });
  it("never loads an image", () => {
    expect(inlineOf("![a](https://x.org/p.png)")).toEqual([{ kind: "text", text: "!" }, { kind: "link", text: "a", to: "https://x.org/p.png" }]);
  });
  it("has links to http and https only", () => {
    expect(["https://x.org", "HTTP://x.org/a b", "ftp://x.org", "mailto:a@b", "https://", " https://x.org"].map(safeAddress)).toEqual(
      ["https://x.org/", "http://x.org/a%20b", null, null, null, null]);
  });
  it.each(["**", "`", "*a", "_a ", "[", "[a](", "> ", "- ", "```\n", "1. ", "#", "\n", "--- "])("of 100,000 characters of %j is read at once", (mark) => {
    blocksOf(mark.repeat(100_000 / mark.length)); // more than linear time would pass the test's end, 5 s
  });
  it("loses no word", () => {
    const text = "- a\n1. b\n* c\n\n\n  d\n```\ne";
    expect(JSON.stringify(blocksOf(text)).match(/"[abcde]"/g)).toEqual(['"a"', '"b"', '"c"', '"d"', '"e"']);
  });
});
