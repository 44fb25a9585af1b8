// Painting of the page's canvases. Each is drawn at the screen's pixels.
import type { Cell, LiveState, Step } from "./state";
import { isFirst } from "./words";

export const ROW = 18;

/** A canvas's context, cleared, in CSS pixels. */
export function begin(canvas: HTMLCanvasElement): CanvasRenderingContext2D | null {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(canvas.clientWidth * scale), Math.round(canvas.clientHeight * scale)];
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext("2d");
  context?.setTransform(scale, 0, 0, scale, 0, 0);
  context?.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  return context;
}

/** How many of the steps fit: 200, or on a phone fewer, each at least 2 px wide. */
export function columnsIn(width: number): number {
  return Math.max(1, Math.min(200, Math.floor(width / 2)));
}

/** Height and place of a cell: a chunk is full, a token low, kept proposals rise with their number. */
function extent(cell: Cell): number {
  if (cell.kind === "chunk") return ROW - 3;
  if (cell.kind === "accepted") return Math.min(ROW - 3, 6 + 2 * (cell.output - cell.rows));
  return 5;
}

export interface Shades {
  prefill: string; decode: string; accepted: string; rejected: string; line: string; text: string; edge: string;
}

/** The grid: `top` to `bottom` are the rows that are seen. `cursor`: row and column from the right. */
export function paintGrid(
  canvas: HTMLCanvasElement, steps: Step[], rows: { turn: number; running: unknown }[], top: number, bottom: number, shades: Shades,
  cursor: { row: number; column: number } | null,
): void {
  const context = begin(canvas);
  if (!context) return;
  const columns = columnsIn(canvas.clientWidth);
  const wide = canvas.clientWidth / columns;
  const first = Math.max(0, Math.floor(top / ROW));
  const seen = new Map(rows.slice(first, Math.ceil(bottom / ROW) + 1).map(({ turn }, index) => [turn, (first + index) * ROW]));
  context.fillStyle = shades.line;
  for (const y of seen.values()) context.fillRect(0, y + ROW - 1, canvas.clientWidth, 1);
  const shown = steps.slice(-columns);
  const colours = { chunk: shades.prefill, one: shades.decode, accepted: shades.accepted, rejected: shades.rejected };
  for (const [index, step] of shown.entries()) {
    const x = (columns - shown.length + index) * wide;
    for (const [turn, cell] of step.cells) {
      const y = seen.get(turn);
      if (y === undefined) continue;
      const high = extent(cell);
      context.fillStyle = colours[cell.kind];
      context.fillRect(x, y + ROW - 2 - high, Math.max(wide - 0.5, 1), high);
      if (isFirst(cell)) { // its prompt is done: the foot is its first token
        context.fillStyle = shades.decode;
        context.fillRect(x, y + ROW - 2 - 5, Math.max(wide - 0.5, 1), 5);
      }
      if (cell.kind === "accepted" && high < ROW - 4) context.fillRect(x, y + 1, Math.max(wide - 0.5, 1), 2); // a mark above it
    }
  }
  if (!cursor) return;
  context.strokeStyle = shades.text;
  context.strokeRect((columns - 1 - cursor.column) * wide, cursor.row * ROW + 0.5, wide, ROW - 2);
}

/** Times of steps as bars, each with its floor as a line. */
export function paintTimes(canvas: HTMLCanvasElement, steps: Step[], shades: Shades, column: number | null): void {
  const context = begin(canvas);
  if (!context) return;
  const columns = columnsIn(canvas.clientWidth);
  const [wide, height] = [canvas.clientWidth / columns, canvas.clientHeight];
  const shown = steps.slice(-columns);
  const most = highest(shown);
  for (const [index, step] of shown.entries()) {
    const x = (columns - shown.length + index) * wide;
    const bar = Math.max(1, (Math.min(step.us, most) / most) * height);
    context.fillStyle = columns - shown.length + index === columns - 1 - (column ?? -1) ? shades.text : step.prefill_tokens ? shades.prefill : shades.decode;
    context.fillRect(x, height - bar, Math.max(wide - 0.5, 1), bar);
    if (step.us > most) context.clearRect(x, 3, wide, 2); // it is cut off
    if (!step.floor_us) continue;
    context.fillStyle = shades.text;
    context.fillRect(x, height - Math.max(1, (step.floor_us / most) * height), wide, 1.5);
  }
}

/** Microseconds of the highest bar: the 98th percentile, since one slow step would flatten all others. */
export function highest(steps: Step[]): number {
  const sorted = steps.map(({ us }) => us).sort((one, other) => one - other);
  return Math.max(1, sorted[Math.floor((sorted.length - 1) * 0.98)] ?? 1);
}

/** Cells of the map: side in px, cells in a line, lines. */
export function mapLayout(blocks: number, width: number): { side: number; columns: number; lines: number } {
  const side = Math.min(12, Math.max(1, Math.round(Math.sqrt((width * 320) / Math.max(blocks, 1)))));
  const columns = Math.max(1, Math.floor(width / side));
  return { side, columns, lines: Math.ceil(blocks / columns) };
}

/** `#rrggbb` as a pixel of ImageData, little-endian. */
export function pixel(colour: string, alpha = 1): number {
  const value = Number.parseInt(colour.slice(1, 7), 16);
  return ((Math.round(alpha * 255) << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

const small = typeof document === "undefined" ? null : document.createElement("canvas");

/** The map: a pixel a cell, enlarged; `marked` cells are outlined. `classes`: of each cell; `pixels`: colour of each
 * class, then of each class where only the prefix cache keeps the block. */
export function paintMap(
  canvas: HTMLCanvasElement, { states }: Pick<LiveState, "states">, classes: Uint16Array, pixels: Uint32Array, marked: number[], cursor: number | null, text: string,
): void {
  const context = begin(canvas);
  if (!context || !small || !classes.length) return;
  const { side, columns, lines } = mapLayout(classes.length, canvas.clientWidth);
  small.width = columns;
  small.height = lines;
  const image = new ImageData(columns, lines);
  const data = new Uint32Array(image.data.buffer);
  for (let cell = 0; cell < classes.length; cell += 1) {
    data[cell] = pixels[(classes[cell] ?? 0) + (((states[cell] ?? 0) & 7) === 1 ? pixels.length / 2 : 0)] ?? 0;
  }
  small.getContext("2d")?.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, columns * side, lines * side);
  if (side >= 4) {
    for (let x = 1; x <= columns; x += 1) context.clearRect(x * side - 1, 0, 1, lines * side);
    for (let y = 1; y <= lines; y += 1) context.clearRect(0, y * side - 1, columns * side, 1);
  }
  context.fillStyle = context.strokeStyle = text;
  context.lineWidth = 1.5;
  const place = (block: number): [number, number] => [(block % columns) * side, Math.floor(block / columns) * side];
  for (const block of marked) context.fillRect(...place(block), Math.max(side - 1, 2), Math.max(side - 1, 2));
  if (cursor === null) return;
  const [x, y] = place(cursor);
  context.strokeRect(x - 3, y - 3, side + 5, side + 5);
}
