// The grid of steps: a row a request, a column a step; below it the steps' times beside their floors.
import type { ReadonlySignal } from "@preact/signals";
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Empty } from "../../components/basics";
import { href } from "../../lib/address";
import { duration } from "../../lib/format";
import { colour, colours } from "../../lib/theme";
import { requestOf } from "../requests/agents";
import { ROW, columnsIn, highest, paintGrid, paintTimes, type Shades } from "./canvas";
import { rowsOf, type LiveState, type Turn } from "./state";
import { cellText, progressText, stepText } from "./words";

const MOST_ROWS = 256;

/** A request as the viewer may see it, a link where there is one. `short`: its end, since ids begin with the time. */
export function Who({ turn, short = false }: { turn: Turn | undefined; short?: boolean }) {
  if (!turn || (short && turn.request_id === null)) return <>a request</>; // its tenant stands beside it
  if (turn.request_id === null) return <>a request of {turn.tenant}</>;
  const id = requestOf(turn.request_id);
  return <a href={href(`requests/${id}`)} title={id}>{short && id.length > 10 ? `…${id.slice(-8)}` : id}</a>;
}

function shadesNow(): Shades {
  const names = { prefill: "--prefill", decode: "--decode", accepted: "--good", rejected: "--queue", line: "--line", text: "--text", edge: "--edge" };
  return Object.fromEntries(Object.entries(names).map(([key, name]) => [key, colour(name)])) as unknown as Shades;
}

/** `changed` rises with each message: the canvases are drawn in the frame after it. */
export function Steps({ state, changed, curl }: { state: LiveState; changed: ReadonlySignal<number>; curl: string }) {
  const [box, grid, times] = [useRef<HTMLDivElement>(null), useRef<HTMLCanvasElement>(null), useRef<HTMLCanvasElement>(null)];
  const cursor = useSignal<{ row: number; column: number } | null>(null);
  const columns = useSignal(200);
  const theme = colours.value;
  const version = changed.value;
  const rows = rowsOf(state, MOST_ROWS, columns.value);
  const draw = useRef(() => undefined as void);
  draw.current = () => {
    if (!box.current || !grid.current || !times.current) return;
    const shades = shadesNow();
    const { scrollTop, clientHeight } = box.current;
    paintGrid(grid.current, state.steps, rows, scrollTop, scrollTop + clientHeight, shades, cursor.value);
    paintTimes(times.current, state.steps, shades, cursor.value?.column ?? null);
  };
  useEffect(() => {
    const frame = requestAnimationFrame(() => draw.current());
    return () => cancelAnimationFrame(frame);
  }, [version, theme, cursor.value]);
  useEffect(() => {
    if (!box.current) return;
    const watch = new ResizeObserver(() => {
      columns.value = columnsIn(grid.current?.clientWidth ?? 400);
      draw.current();
    });
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [rows.length === 0]);

  if (!rows.length) return <Empty what="Each request that runs has a row here, with the tokens that each step gave it." command={curl} />;
  const most = state.running.length;
  const at = (event: MouseEvent): void => {
    const element = event.currentTarget as HTMLElement;
    const area = element.getBoundingClientRect();
    const most = columnsIn(area.width);
    const column = most - 1 - Math.min(most - 1, Math.max(0, Math.floor(((event.clientX - area.left) / area.width) * most)));
    const row = element === grid.current ? Math.min(rows.length - 1, Math.max(0, Math.floor((event.clientY - area.top) / ROW))) : (cursor.value?.row ?? 0);
    cursor.value = { row, column };
  };
  const onKey = (event: KeyboardEvent): void => {
    const move = { ArrowLeft: [0, 1], ArrowRight: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-10, 0], PageDown: [10, 0] }[event.key];
    if (event.key === "Escape") cursor.value = null;
    if (!move) return;
    event.preventDefault();
    const { row, column } = cursor.value ?? { row: 0, column: -1 };
    const most = Math.min(state.steps.length, columns.value);
    cursor.value = { row: Math.min(rows.length - 1, Math.max(0, row + (move[0] ?? 0))), column: Math.min(most - 1, Math.max(0, column + (move[1] ?? 0))) };
    box.current?.scrollTo({ top: Math.max(0, cursor.value.row * ROW - 120) });
  };
  const place = cursor.value;
  const step = place ? state.steps.at(-1 - place.column) : undefined;
  const row = place ? rows[place.row] : undefined;
  const cell = row && step?.cells.get(row.turn);
  const turn = row && state.turns.get(row.turn);
  const told = step ? `${stepText(step)}. ${cell ? cellText(cell) : "nothing"} for this request` : `${state.steps.length} steps, ${rows.length} requests`;
  return (
    <figure class="live-steps">
      <div class="live-grid" ref={box} onScroll={() => draw.current()} tabIndex={-1}>
        <ol class="live-labels" aria-label="Requests, those that run first">
          {rows.map((each, index) => (
            <li key={each.turn} class={`${each.running ? "" : "quiet"} ${index === place?.row ? "at" : ""}`}>
              <span class="cut"><Who turn={state.turns.get(each.turn)} short /></span>
              <span class="cut tenant">{state.turns.get(each.turn)?.tenant}</span>
              <span class="right nowrap">{each.running ? progressText(each.running) : "ended"}</span>
            </li>
          ))}
        </ol>
        <canvas ref={grid} style={{ height: `${rows.length * ROW}px` }} tabIndex={0} role="slider" aria-label="Tokens of each request in each step"
          aria-valuemin={0} aria-valuemax={state.steps.length} aria-valuenow={state.steps.length - (place?.column ?? 0)} aria-valuetext={told}
          onMouseMove={at} onMouseLeave={() => (cursor.value = null)} onKeyDown={onKey} onBlur={() => (cursor.value = null)} />
      </div>
      <div class="live-times">
        <span class="quiet">Step time beside its floor<br />highest: {duration(highest(state.steps) / 1e6)}</span>
        <canvas ref={times} role="img" aria-label="Time of each step beside its floor; the table has the latest" onMouseMove={at} onMouseLeave={() => (cursor.value = null)} />
      </div>
      <figcaption class="readout">
        {step ? (
          <span>{stepText(step)}. {row && <><Who turn={turn} />: {cell ? cellText(cell) : "not in this step"}.</>}</span>
        ) : (
          <span class="stage-key">
            <span><span class="swatch live-chunk" aria-hidden="true" />chunk of a prompt (full; a foot: its first token)</span>
            <span><span class="swatch live-one" aria-hidden="true" />a token (low)</span>
            <span><span class="swatch live-accepted" aria-hidden="true" />proposals kept (dash above)</span>
            <span><span class="swatch live-rejected" aria-hidden="true" />proposals rejected (low)</span>
            <span>line in the bars: the device's floor; newest right{most > MOST_ROWS ? `; ${most - MOST_ROWS} more requests run` : ""}</span>
          </span>
        )}
      </figcaption>
    </figure>
  );
}
