// Requests of a session on one time axis from which long idle times are cut.
import type { RequestRow } from "./types";

interface Lane {
  row: RequestRow;
  /** Shares of the axis, 0 to 1. */
  begin: number;
  first: number;
  end: number;
}

export interface Lanes {
  lanes: Lane[];
  /** Idle times that were cut: where, and how long they were. */
  cuts: { at: number; seconds: number }[];
  /** Seconds that the axis shows. */
  shown: number;
}

type Timed = Pick<RequestRow, "started_at" | "total_s" | "ttft_s">;

/** Places of requests. An idle time that is longer than a tenth of all work is drawn as a twentieth of it. */
export function lanesOf(rows: RequestRow[]): Lanes {
  const ordered = [...rows].sort((one, other) => one.started_at - other.started_at);
  const work = busySeconds(ordered);
  const cuts: { from: number; to: number; kept: number }[] = [];
  let until = ordered[0]?.started_at ?? 0;
  for (const { started_at, total_s } of ordered) {
    if (started_at - until > work / 10) cuts.push({ from: until, to: started_at, kept: work / 20 });
    until = Math.max(until, started_at + total_s);
  }
  const begin = ordered[0]?.started_at ?? 0;
  const place = (at: number): number => {
    let shown = at - begin;
    for (const { from, to, kept } of cuts) if (at >= to) shown -= to - from - kept;
    return shown;
  };
  const shown = Math.max(place(until), 1e-9);
  const share = (at: number): number => place(at) / shown;
  return {
    shown,
    cuts: cuts.map(({ from, to, kept }) => ({ at: (place(from) + kept / 2) / shown, seconds: to - from })),
    lanes: ordered.map((row) => {
      const end = row.started_at + row.total_s;
      const first = row.ttft_s === null ? end : Math.min(end, row.started_at + row.ttft_s);
      return { row, begin: share(row.started_at), first: share(first), end: share(end) };
    }),
  };
}

/** Seconds in which at least one request ran. `ordered`: by their beginnings. */
export function busySeconds(ordered: Timed[]): number {
  let [busy, until] = [0, -Infinity];
  for (const { started_at, total_s } of ordered) {
    busy += Math.max(0, started_at + total_s - Math.max(until, started_at));
    until = Math.max(until, started_at + total_s);
  }
  return busy;
}
