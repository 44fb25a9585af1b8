// Latency ribbon: a token a cell, its width the time it took, its colour and its height the cause.
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { duration } from "../lib/format";
import { TOKEN_CAUSES, type TokenCause } from "../lib/stages";
import { colour, colours } from "../lib/theme";

/** A token as the server gives it (`TokenCell`): when it came, seconds since the one before, cause. */
export type Cell = [at_s: number, seconds: number, cause: string];

/** Colour and height (share of the ribbon) of each cause: heights tell causes apart without colours. */
const LOOKS: Record<TokenCause, [variable: string, height: number]> = {
  "own prompt": ["--prefill", 0.45],
  "own step": ["--decode", 0.45],
  "shared with a prompt": ["--prefill", 0.75],
  preempted: ["--bad", 1],
  "proposal accepted": ["--good", 0.3],
  failover: ["--queue", 1],
};
const look = (cause: string): [string, number] => LOOKS[cause as TokenCause] ?? ["--unexplained", 0.6];

/** Times and numbers of tokens by cause, the longest first. */
export function causes(cells: Cell[]): { cause: string; tokens: number; seconds: number }[] {
  const sums = new Map<string, { cause: string; tokens: number; seconds: number }>();
  for (const [, seconds, cause] of cells) {
    const sum = sums.get(cause) ?? { cause, tokens: 0, seconds: 0 };
    sum.tokens += 1;
    sum.seconds += seconds;
    sums.set(cause, sum);
  }
  return [...sums.values()].sort((one, other) => other.seconds - one.seconds);
}

/** Index of the token that was being made at a time. */
export function cellAt(cells: Cell[], at: number): number {
  let [low, high] = [0, cells.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((cells[middle]?.[0] ?? 0) < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

export function Ribbon({ cells, texts, begin, end, selected, onSelect }: {
  cells: Cell[];
  /** Text of each token, where it may be shown. */
  texts?: string[];
  /** Seconds of the ribbon's ends; give a waterfall's 0 and total to align with it. */
  begin?: number;
  end?: number;
  selected?: number | null;
  onSelect?: (index: number) => void;
}) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const hovered = useSignal<number | null>(null);
  const first = cells[0];
  const from = begin ?? (first ? first[0] - first[1] : 0);
  const to = end ?? cells.at(-1)?.[0] ?? 1;
  const drawn = colours.value;
  const current = hovered.value ?? selected ?? null;

  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const draw = (): void => paint(element, cells, from, to, current);
    const watch = new ResizeObserver(draw);
    watch.observe(element);
    draw();
    return () => watch.disconnect();
  }, [cells, from, to, drawn, current]);

  if (!cells.length) return <p class="quiet">No token was given.</p>;
  const at = (event: MouseEvent): number => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    return cellAt(cells, from + ((event.clientX - box.left) / box.width) * (to - from));
  };
  const onKey = (event: KeyboardEvent): void => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20 }[event.key];
    if (event.key === "Enter" && current !== null) onSelect?.(current);
    if (step === undefined) return;
    event.preventDefault();
    hovered.value = Math.min(cells.length - 1, Math.max(0, (current ?? -1) + step));
  };
  const cell = current === null ? undefined : cells[current];
  return (
    <div class="ribbon">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="slider"
        aria-label={`Tokens: ${causes(cells).map(({ cause, tokens }) => `${tokens} ${cause}`).join(", ")}`}
        aria-valuemin={1}
        aria-valuemax={cells.length}
        aria-valuenow={(current ?? 0) + 1}
        aria-valuetext={cell ? `token ${(current ?? 0) + 1}, ${duration(cell[1])}, ${cell[2]}` : `token 1 of ${cells.length}`}
        onMouseMove={(event) => (hovered.value = at(event))}
        onMouseLeave={() => (hovered.value = null)}
        onClick={(event) => onSelect?.(at(event))}
        onKeyDown={onKey}
      />
      <p class="readout">
        {cell ? (
          <>
            Token {(current ?? 0) + 1} of {cells.length}
            {texts?.[current ?? 0] !== undefined && <> <code>{JSON.stringify(texts[current ?? 0])}</code></>}: {duration(cell[1])}, {cell[2]}, at {duration(cell[0])}
          </>
        ) : (
          <CauseKey cells={cells} />
        )}
      </p>
    </div>
  );
}

function CauseKey({ cells }: { cells: Cell[] }) {
  return (
    <span class="stage-key">
      {causes(cells).map(({ cause, tokens, seconds }) => (
        <span key={cause}>
          <span class={`swatch ${TOKEN_CAUSES[cause as TokenCause] ?? "stage-unexplained"}`} aria-hidden="true" />
          {cause}: {tokens}, {duration(seconds)}
        </span>
      ))}
    </span>
  );
}

function paint(canvas: HTMLCanvasElement, cells: Cell[], from: number, to: number, current: number | null): void {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth * scale, canvas.clientHeight * scale];
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext("2d");
  if (!context) return;
  context.clearRect(0, 0, width, height);
  const x = (at: number): number => ((at - from) / Math.max(to - from, 1e-9)) * width;
  const shades = new Map<string, string>();
  for (const [index, [at, seconds, cause]] of cells.entries()) {
    const [variable, share] = look(cause);
    if (!shades.has(variable)) shades.set(variable, colour(variable));
    const [left, right] = [x(at - seconds), x(at)];
    const gap = right - left > 4 * scale ? scale : 0;
    context.fillStyle = index === current ? colour("--text") : (shades.get(variable) ?? "");
    context.fillRect(left, height * (1 - share), Math.max(right - left - gap, 0.5), height * share);
  }
}
