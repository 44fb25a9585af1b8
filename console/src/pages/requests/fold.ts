// Short parts of a waterfall that follow one another, put together so that the long ones are seen.
import type { Part } from "../../components/waterfall";

/** Share of the total below which a part is short. */
const SHORT = 0.005;
const KEPT = new Set(["queue", "prefill", "decode", "unexplained", "failover", "preempted"]);

/** Parts, with each run of two or more short ones as one part that holds them. Their ends stay as they are. */
export function folded(parts: Part[], total: number): Part[] {
  const found: Part[] = [];
  let run: Part[] = [];
  const end = (): void => {
    const [first, last] = [run[0], run.at(-1)];
    if (first && last && run.length > 1) {
      const longest = run.reduce((one, other) => (other.end_s - other.begin_s > one.end_s - one.begin_s ? other : one));
      found.push({
        name: `${run.length} short parts`, stage: longest.stage, begin_s: first.begin_s, end_s: last.end_s,
        detail: [...new Set(run.map(({ name }) => name))].join(", "), parts: run,
      });
    } else found.push(...run);
    run = [];
  };
  for (const part of parts) {
    if (part.end_s - part.begin_s < SHORT * total && !KEPT.has(part.name)) run.push(part);
    else {
      end();
      found.push(part);
    }
  }
  end();
  return found;
}
