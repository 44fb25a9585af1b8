// Who else was in an engine's steps during a part of a request.
import type { RequestDetail, StepTurn, TurnSteps } from "./types";

export interface Other {
  turn: StepTurn;
  /** Time of the steps in which it was. */
  seconds: number;
  /** Tokens of its prompt that these steps computed. */
  prompt: number;
}

/** Whether a row computed a part of a prompt: several tokens, of which no more than one was drawn. Rejected proposals
 * look alike but for the step's prompts, which are fewer. */
export function isChunk(computed: number, output: number, prefill: number): boolean {
  return computed > 1 && output <= 1 && prefill >= computed;
}

/** Id of the kept request of an engine's turn: several prompts and failovers add to it. */
export function requestOf(turnId: string): string {
  return turnId.replace(/[~-]\d+$/, "");
}

/** When the engine accepted a turn, in seconds since the request's headers came; null where it is not told. */
function acceptedAt({ events }: Pick<RequestDetail, "events">, place: number): number | null {
  return events.find((event) => event.turn === place + 1)?.at_s ?? null;
}

/** Requests in steps between two times of a request, those that were in the longest steps first. */
export function others(detail: Pick<RequestDetail, "events">, turns: Record<string, TurnSteps>, begin: number, end: number): Other[] {
  const found = new Map<string, Other>();
  Object.values(turns).forEach((told, place) => {
    const accepted = acceptedAt(detail, place);
    if (accepted === null) return;
    for (const [, at, us, , prefill, , , , , , rows] of told.steps) {
      const [from, until] = [accepted + at / 1e6, accepted + (at + us) / 1e6];
      const seconds = Math.min(until, end) - Math.max(from, begin);
      if (seconds <= 0) continue;
      const seen = new Set<number>();
      for (const [index, computed, output] of rows) {
        const turn = told.turns[index];
        if (index === 0 || !turn) continue;
        const key = turn.request_id || `${place}:${index}`;
        const other = found.get(key) ?? { turn, seconds: 0, prompt: 0 };
        if (!seen.has(index)) other.seconds += seconds;
        seen.add(index);
        if (isChunk(computed, output, prefill)) other.prompt = Math.min(turn.prompt_tokens, other.prompt + computed);
        found.set(key, other);
      }
    }
  });
  return [...found.values()].sort((one, other) => other.prompt - one.prompt || other.seconds - one.seconds);
}
