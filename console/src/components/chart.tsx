// A chart over time, or over another quantity: uPlot, drawn again when the theme or the width changes. Charts over time share
// the cursor with those of the page.
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { UNKNOWN, clock, dateTime, hasOwnForm, onAxis, withUnit } from "../lib/format";
import { colour, colours } from "../lib/theme";

interface Series {
  name: string;
  /** A value for each time; null is a gap and stays one. */
  values: (number | null)[];
}

interface Mark {
  /** UNIX seconds, or a value of the quantity. */
  at: number;
  /** `chat-8b@4 deployed`. */
  label: string;
}

interface Over {
  name: string;
  unit?: string;
  log?: boolean;
}

interface ChartProps {
  title: string;
  /** Unit as `withUnit` knows it: `s`, `share`, `bytes`, `USD`, or any word. */
  unit?: string;
  /** UNIX seconds, or values of the quantity `over`, rising; the same for every series. */
  times: number[];
  /** The quantity in place of time: its name, its unit as `withUnit` knows it, and whether its axis is logarithmic. */
  over?: Over;
  /** At most four. */
  series: Series[];
  /** Lines of targets: an SLO, a limit. */
  thresholds?: { value: number; label: string }[];
  /** Deploys and restarts. */
  marks?: Mark[];
  /** First and last second of the axis, so that charts of a page agree; else those of `times`. */
  span?: [number, number];
  height?: number;
}

const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
/** Room for the names at the lines' ends, the same in every chart so that their axes lie under one another. */
const NAME_WIDTH = 56;
const FONT = "12px system-ui, sans-serif";

/** Where labels of lines' ends are put so that they do not cover one another: tops in the order given. */
export function spread(wanted: number[], height: number, top: number, bottom: number): number[] {
  const order = wanted.map((at, index) => ({ at, index })).sort((a, b) => a.at - b.at);
  let floor = top;
  for (const item of order) floor = (item.at = Math.max(item.at, floor)) + height;
  let ceiling = bottom - height;
  for (const item of [...order].reverse()) ceiling = (item.at = Math.min(item.at, ceiling)) - height;
  return order.sort((a, b) => a.index - b.index).map((item) => item.at);
}

/** Places of values that no line shows: those before and after are unknown. */
export function alone(values: (number | null | undefined)[]): number[] {
  const isKnown = (index: number): boolean => typeof values[index] === "number";
  return values.flatMap((_, index) => (isKnown(index) && !isKnown(index - 1) && !isKnown(index + 1) ? [index] : []));
}

function lastKnown(values: (number | null)[]): number | null {
  return values.findLast((value) => value !== null) ?? null;
}

export function Chart(props: ChartProps) {
  const { title, unit = "", times, series, over, thresholds = [], marks = [], span, height = 160 } = props;
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const hovered = useSignal<number | null>(null);
  const shown = series.slice(0, 4);
  const drawn = colours.value;
  const hasData = times.length > 0 && shown.some((line) => line.values.some((value) => value !== null));
  const data = [times, ...shown.map((line) => line.values)] as uPlot.AlignedData;
  const shape = JSON.stringify([title, unit, over, shown.map((line) => line.name), thresholds, marks, span, height]);

  useEffect(() => {
    const element = place.current;
    if (!element || !hasData) return;
    const made = new uPlot(
      options({ unit, over, shown, thresholds, marks, span, height, width: element.clientWidth }, (index) => (hovered.value = index)),
      data,
      element,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, drawn, hasData]);
  useEffect(() => {
    if (plot.current && plot.current.data !== data) plot.current.setData(data);
  }, [times, ...shown.map((line) => line.values)]);

  const at = hovered.value;
  const valueOf = (line: Series): number | null => (at === null ? lastKnown(line.values) : (line.values[at] ?? null));
  const near = at === null ? [] : marks.filter((mark) => Math.abs(mark.at - (times[at] ?? 0)) < nearby(times));
  const [inTitle, withValue] = hasOwnForm(unit) || !unit ? ["", unit] : [` ${unit}`, ""];
  return (
    <figure class="chart">
      <figcaption>
        <span class="title">
          {title}
          <span class="quiet">{inTitle}</span>
        </span>
        <span class="values">
          {at !== null && <span>{whereText(over, times[at])}</span>}
          {hasData && shown.map((line, index) => (
            <span key={line.name}>
              {shown.length > 1 && <span class={`line-key line-key-${index + 1}`} aria-hidden="true" />}
              {shown.length > 1 && `${line.name} `}
              {(!over || at !== null || shown.length < 2) && <b>{withUnit(valueOf(line), withValue)}</b>}
            </span>
          ))}
        </span>
      </figcaption>
      <div class="plot" role="img" aria-label={summary(title, unit, over, times, shown)} ref={place}>
        {!hasData && <span class="none">{over ? "No data" : "No data in this range"}</span>}
        {near.length > 0 && <span class="marks">{near.map((mark) => mark.label).join(", ")}</span>}
      </div>
    </figure>
  );
}

const nearby = (times: number[]): number => Math.max(10, ((times.at(-1) ?? 0) - (times[0] ?? 0)) / 60);

/** A place on the axis: the time of day, or the quantity's value. */
const whereText = (over: Over | undefined, at: number | undefined): string => (over ? `${over.name} ${withUnit(at, over.unit)}` : clock(at));

function summary(title: string, unit: string, over: Over | undefined, times: number[], series: Series[]): string {
  if (over) return `${title} over ${over.name}, ${withUnit(times[0], over.unit)} to ${withUnit(times.at(-1), over.unit)}: ${series.map((line) => line.name).join(", ")}`;
  const latest = series.map((line) => {
    const value = lastKnown(line.values);
    return `${line.name} ${value === null ? UNKNOWN : withUnit(value, unit)}`;
  });
  return `${title}, ${dateTime(times[0])} to ${clock(times.at(-1))}; latest: ${latest.join(", ")}`;
}

type Drawing = Required<Pick<ChartProps, "unit" | "thresholds" | "marks" | "height">> & {
  shown: Series[];
  over: Over | undefined;
  span: [number, number] | undefined;
  width: number;
};

function options(drawing: Drawing, onHover: (index: number | null) => void): uPlot.Options {
  const { unit, shown, over, thresholds, marks, span, height, width } = drawing;
  const axis = { stroke: colour("--quiet"), font: FONT, ticks: { show: false } };
  const apart = !over || new Set(shown.map((line) => lastKnown(line.values))).size === shown.length;
  const labelled = shown.length > 1 && shown.length < 4 && width > 320 && apart;
  const timeText = (at: number): string => (span && span[1] - span[0] > 172_800 ? dateTime(at).slice(5, 10) : clock(at, false));
  const places = (_plot: uPlot, values: (number | null)[]): string[] =>
    values.map((at) => (at === null ? "" : over ? onAxis(at, over.unit ?? "") : timeText(at)));
  const most = Math.max(0, ...shown.flatMap((line) => line.values.map((value) => value ?? 0)), ...thresholds.map(({ value }) => value));
  return {
    width,
    height,
    padding: [8, width > 320 && (labelled || !over) ? NAME_WIDTH : over ? 28 : 12, 0, 0],
    legend: { show: false },
    cursor: { ...(over ? {} : { sync: { key: "page" } }), y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: { x: { time: !over, ...(over?.log ? { distr: 3 as const } : {}), ...(span ? { range: () => span } : {}) }, y: { range: () => [0, most > 0 ? most * 1.08 : 1] } },
    axes: [
      { ...axis, grid: { show: false }, values: places, size: 24, space: 64 },
      { ...axis, grid: { stroke: colour("--line"), width: 1 }, size: 58, space: 36, values: (_plot, values) => values.map((value) => onAxis(value, unit)) },
    ],
    series: [
      {},
      ...shown.map((line, index) => ({
        label: line.name,
        stroke: colour(`--series-${index + 1}`),
        width: 1.5,
        dash: DASHES[index] ?? [],
        spanGaps: false,
        points: { show: true, size: 5, fill: colour(`--series-${index + 1}`), filter: (plot: uPlot, which: number) => alone(Array.from(plot.data[which] ?? [])) },
      })),
    ],
    hooks: {
      setCursor: [(plot) => onHover(plot.cursor.idx ?? null)],
      draw: [
        (plot) => {
          for (const { value, label } of thresholds) drawThreshold(plot, value, label);
          for (const mark of marks) drawMark(plot, mark);
          if (labelled) drawNames(plot, shown);
        },
      ],
    },
  };
}

function prepared(plot: uPlot, colourName: string): CanvasRenderingContext2D {
  const { ctx } = plot;
  ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.strokeStyle = ctx.fillStyle = colour(colourName);
  ctx.lineWidth = devicePixelRatio;
  ctx.textAlign = "left";
  ctx.setLineDash([]);
  return ctx;
}

function drawThreshold(plot: uPlot, value: number, label: string): void {
  const { left, width } = plot.bbox;
  const y = plot.valToPos(value, "y", true);
  plot.ctx.save();
  const ctx = prepared(plot, "--bad");
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(left, y);
  ctx.lineTo(left + width, y);
  ctx.stroke();
  ctx.textBaseline = "bottom";
  ctx.fillText(label, left + 4 * devicePixelRatio, y - 2 * devicePixelRatio);
  ctx.restore();
}

function drawMark(plot: uPlot, mark: Mark): void {
  const { left, top, width, height } = plot.bbox;
  const x = Math.round(plot.valToPos(mark.at, "x", true));
  if (x < left || x > left + width) return;
  plot.ctx.save();
  const ctx = prepared(plot, "--quiet");
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x, top + height);
  ctx.stroke();
  ctx.beginPath();
  ctx.moveTo(x - 4 * devicePixelRatio, top);
  ctx.lineTo(x + 4 * devicePixelRatio, top);
  ctx.lineTo(x, top + 6 * devicePixelRatio);
  ctx.fill();
  ctx.restore();
}

function drawNames(plot: uPlot, shown: Series[]): void {
  const { left, top, width, height } = plot.bbox;
  const line = 14 * devicePixelRatio;
  const wanted = shown.map((series) => plot.valToPos(lastKnown(series.values) ?? 0, "y", true) - line / 2);
  const tops = spread(wanted, line, top - 4 * devicePixelRatio, top + height + line / 2);
  plot.ctx.save();
  for (const [index, series] of shown.entries()) {
    const ctx = prepared(plot, `--series-${index + 1}`);
    ctx.textBaseline = "middle";
    ctx.fillText(series.name, left + width + 6 * devicePixelRatio, (tops[index] ?? 0) + line / 2);
  }
  plot.ctx.restore();
}
