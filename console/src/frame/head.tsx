// Head of a page: title, range of time, live switch, and one sentence that says how things are.
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { RANGE_WORDS, href, live, range, shownRange, type Range } from "../lib/address";
import type { Level } from "../components/basics";
import { Menu } from "../components/menu";

export interface SentenceData {
  text: string;
  level?: Level;
  /** Page with the evidence. */
  to?: string | null;
}

/** The state of what a page shows, as a person would say it. */
function Sentence({ text, level = "quiet", to }: SentenceData) {
  return (
    <p class="sentence" role="status">
      <span class={`mark mark-${level}`} aria-hidden="true" />
      {to ? <a href={href(to)}>{text}</a> : text}
    </p>
  );
}

interface PageHeadProps {
  title: string;
  /** Undefined while it is not known yet: its room is kept. */
  sentence: SentenceData | undefined;
  /** Ranges that the page can show; without them it has no range. */
  ranges?: Range[];
  /** The page has a stream: a switch is shown. */
  streams?: boolean;
  /** Buttons of the page, before the range. */
  children?: ComponentChildren;
}

export function PageHead({ title, sentence, ranges, streams = false, children }: PageHeadProps) {
  useEffect(() => {
    document.title = `${title} · Kvarn`;
  }, [title]);
  return (
    <>
      <div class="page-head">
        <h1 tabIndex={-1}>{title}</h1>
        <div class="controls">
          {children}
          {ranges && (
            <Menu
              label={RANGE_WORDS[shownRange(ranges)]}
              title="Range"
              side="right"
              items={ranges.map((one) => ({ label: RANGE_WORDS[one], checked: one === shownRange(ranges), run: () => (range.value = one) }))}
            />
          )}
          {streams && (
            <button type="button" role="switch" aria-checked={live.value} class="button plain live" onClick={() => (live.value = !live.value)}>
              live <span class="dot" aria-hidden="true" />
            </button>
          )}
        </div>
      </div>
      {sentence ? <Sentence {...sentence} /> : <p class="sentence" />}
    </>
  );
}
