// A text of the model, as markdown or as it is.
import { useMemo } from "preact/hooks";
import { CopyButton } from "../../components/basics";
import { blocksOf, type Block, type Inline } from "./markdown";

export function Text({ text, plain }: { text: string; plain: boolean }) {
  const blocks = useMemo(() => (plain ? [] : blocksOf(text)), [text, plain]);
  if (plain) return <div class="pg-plain">{text}</div>;
  return <div class="pg-markdown">{blocks.map((block, index) => <BlockOf key={index} block={block} />)}</div>;
}

function BlockOf({ block }: { block: Block }) {
  switch (block.kind) {
    case "rule": return <hr />;
    case "code": return (
      <div class="pg-code">
        <div class="row"><span class="quiet">{block.language || "text"}</span><CopyButton text={block.text} what="the code" /></div>
        <pre tabIndex={0}><code>{block.text}</code></pre>
      </div>
    );
    case "heading": return <p class={`pg-heading pg-heading-${Math.min(block.level, 3)}`}><Inlines of={block.inline} /></p>;
    case "quote": return <blockquote><Inlines of={block.inline} /></blockquote>;
    case "paragraph": return <p><Inlines of={block.inline} /></p>;
    case "list": {
      const items = block.items.map((item, index) => <li key={index}><Inlines of={item} /></li>);
      return block.ordered ? <ol start={block.start}>{items}</ol> : <ul>{items}</ul>;
    }
  }
}

function Inlines({ of }: { of: Inline[] }) {
  return (
    <>
      {of.map((piece, index) => {
        switch (piece.kind) {
          case "code": return <code key={index}>{piece.text}</code>;
          case "strong": return <strong key={index}>{piece.text}</strong>;
          case "emphasis": return <em key={index}>{piece.text}</em>;
          case "link": return <a key={index} href={piece.to} target="_blank" rel="noopener noreferrer nofollow" title={piece.to}>{piece.text}</a>;
          case "text": return piece.text;
        }
      })}
    </>
  );
}
