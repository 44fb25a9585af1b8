// Parts of a request drawn to scale, one under another, each beginning where the one before ends.
import { useSignal } from "@preact/signals";
import { duration, number, ticks } from "../lib/format";
import { STAGES, stageClass } from "../lib/stages";

/** A part as the server gives it (`kvarn.explain.explanation.Part`). Times in seconds since the request's headers came. */
export interface Part {
  name: string;
  stage: string;
  begin_s: number;
  end_s: number;
  detail?: string;
  parts?: Part[];
}

export interface FlatPart {
  part: Part;
  depth: number;
  /** Names from the top to this part, which tell it from others. */
  path: string;
}

/** Parts in the order of their lines; those inside another only where its path is in `open`. */
export function flatten(parts: Part[], open: ReadonlySet<string>, depth = 0, above = ""): FlatPart[] {
  return parts.flatMap((part, index) => {
    const path = `${above}/${index}:${part.name}`;
    const inside = part.parts?.length && open.has(path) ? flatten(part.parts, open, depth + 1, path) : [];
    return [{ part, depth, path }, ...inside];
  });
}

type BarPlace = Record<"left" | "width", string>;

/** Place of a bar between 0 and `total`, in per cent. */
export function barPlace(begin: number, end: number, total: number): BarPlace {
  const scale = total > 0 ? 100 / total : 0;
  const left = Math.min(100, Math.max(0, begin * scale));
  return { left: `${left}%`, width: `${Math.min(100 - left, Math.max(0, (end - begin) * scale))}%` };
}

/** Where a bar's words go: beside it where there is room, else inside. */
export function detailPlace({ left, width }: BarPlace): { place: Record<string, string>; inside: boolean } {
  const [before, after] = [parseFloat(left), parseFloat(left) + parseFloat(width)];
  if (after < 65) return { place: { left: `${after}%`, right: "0" }, inside: false };
  if (before > 35) return { place: { left: "0", right: `${100 - before}%`, textAlign: "right" }, inside: false };
  return { place: { left: `${before}%` }, inside: true };
}

/** Axis with round times, all in the unit of the last; also above a ribbon. */
export function TimeAxis({ total }: { total: number }) {
  const marks = ticks(total, 7).filter((at) => at === 0 || total - at > total * 0.08);
  const text = (at: number): string => (at > 0 && total >= 1 && total < 100 ? `${number(at)} s` : at > 0 ? duration(at) : "0");
  return (
    <div class="axis" aria-hidden="true">
      {marks.map((at) => <span key={at} class={at > total * 0.7 ? "near-end" : undefined} style={{ left: `${(100 * at) / total}%` }}>{text(at)}</span>)}
      <span class="last" style={{ left: "100%" }}>{text(total)}</span>
    </div>
  );
}

export function Waterfall({ parts, total, selected, onSelect }: {
  parts: Part[];
  /** Seconds of the whole request; the scale's end. */
  total: number;
  /** Path of the selected part (`FlatPart.path`). */
  selected?: string;
  onSelect?: (part: FlatPart) => void;
}) {
  const open = useSignal<ReadonlySet<string>>(new Set());
  const toggle = (path: string): void => {
    const next = new Set(open.value);
    if (!next.delete(path)) next.add(path);
    open.value = next;
  };
  return (
    <div class="waterfall" role="table" aria-label={`Where ${duration(total)} went`}>
      <TimeAxis total={total} />
      {flatten(parts, open.value).map((flat) => {
        const { part, depth, path } = flat;
        const place = barPlace(part.begin_s, part.end_s, total);
        const words = detailPlace(place);
        const share = total > 0 ? (part.end_s - part.begin_s) / total : 0;
        return (
          <div key={path} class="part" role="row" aria-selected={selected === path} onClick={() => onSelect?.(flat)}
            title={`${part.name}: ${duration(part.begin_s)} to ${duration(part.end_s)}`}>
            <span class="name" role="rowheader" style={{ paddingLeft: `${depth * 14}px` }}>
              {part.parts?.length ? (
                <button type="button" aria-expanded={open.value.has(path)} aria-label={`Parts of ${part.name}`}
                  onClick={(event) => { event.stopPropagation(); toggle(path); }}>
                  {open.value.has(path) ? "▾" : "▸"}
                </button>
              ) : null}
              {part.name}
            </span>
            <span class="lane" role="cell">
              <span class={stageClass(part.stage)} style={place} />
              {part.detail && (
                <span class={`detail ${words.inside ? "inside" : ""}`} style={words.place}>{part.detail}</span>
              )}
            </span>
            <span class="took" role="cell">
              {duration(part.end_s - part.begin_s)}
              <span class="unseen">, {Math.round(share * 100)} % of the total{part.detail ? `, ${part.detail}` : ""}</span>
            </span>
          </div>
        );
      })}
    </div>
  );
}

/** Colours and patterns of stages, with their names. */
export function StageKey({ stages = Object.keys(STAGES) }: { stages?: string[] }) {
  return (
    <ul class="stage-key" aria-label="Stages">
      {stages.map((stage) => (
        <li key={stage}>
          <span class={`swatch ${stageClass(stage)}`} aria-hidden="true" />
          {STAGES[stage as keyof typeof STAGES] ?? stage}
        </li>
      ))}
    </ul>
  );
}
