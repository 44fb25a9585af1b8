// An engine's step records as rows to show.
import type { StepTurn, TurnSteps } from "./types";

export interface Shared {
  number: number;
  /** Seconds since the turn was accepted. */
  at: number;
  seconds: number;
  /** The least that the device needs; null: not known. */
  floor: number | null;
  prefill: number;
  decodeRows: number;
  free: number;
  /** Tokens of the turn itself; null: it was not in the step. */
  own: { computed: number; output: number } | null;
  /** Others, those that computed most first. */
  others: { turn: StepTurn; computed: number; output: number }[];
}

/** Steps with the turn's own tokens and those of others. */
export function shared(told: TurnSteps): Shared[] {
  return told.steps.map(([number, at, us, floor, prefill, , decodeRows, , , free, rows]) => {
    const mine = rows.filter(([turn]) => turn === 0);
    const others = rows.flatMap(([index, computed, output]) => {
      const turn = told.turns[index];
      return index > 0 && turn ? [{ turn, computed, output }] : [];
    });
    return {
      number, at: at / 1e6, seconds: us / 1e6, floor: floor ? floor / 1e6 : null, prefill, decodeRows, free,
      own: mine.length ? { computed: mine.reduce((sum, [, computed]) => sum + computed, 0), output: mine.reduce((sum, [, , output]) => sum + output, 0) } : null,
      others: others.sort((one, other) => other.computed - one.computed),
    };
  });
}
