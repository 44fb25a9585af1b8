// What the page says, from the numbers of the stream.
import type { SentenceData } from "../../frame/head";
import { count, duration, number, percent } from "../../lib/format";
import { NOBODY, OTHERS, type Cell, type LiveState, type Queued, type Running, type Step } from "./state";

const REASONS: Record<string, string> = {
  slot: "a slot", budget: "token budget", latency: "latency targets", blocks: "KV blocks",
  adapter: "an adapter", fetch: "KV of a tier", mask: "a grammar", preempted: "a place again, preempted", step: "the next step",
};

/** What a queued sequence waits for: `KV blocks`. */
export function reasonText(reason: string): string {
  return REASONS[reason] ?? reason.replaceAll("_", " ");
}

export function median(values: number[]): number | null {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[sorted.length >> 1] ?? null;
}

/** Median time of the latest steps and how many times their floor it is; null: not known. */
export function pace(steps: Step[], latest = 20): { seconds: number | null; times: number | null } {
  const last = steps.slice(-latest);
  const us = median(last.map((step) => step.us));
  const times = median(last.filter((step) => step.floor_us > 0).map((step) => step.us / step.floor_us));
  return { seconds: us === null ? null : us / 1e6, times };
}

/** What waits longest, of what something stands in the way of. */
function blocked(queue: Queued[]): Queued | undefined {
  return queue.filter(({ reason }) => reason !== "step").sort((one, other) => other.oldest_s - one.oldest_s)[0];
}

/** How the replica is, as a person would say it. `now`: UNIX seconds. */
export function liveSentence(state: LiveState, now: number): SentenceData | undefined {
  if (!state.replica) return undefined;
  if (state.problem) return { text: `Nothing is known of the steps of ${state.replica}: ${state.problem}.`, level: state.at ? "warn" : "quiet" };
  const sequences = state.running.reduce((sum, { choices }) => sum + choices, 0);
  const { seconds, times } = pace(state.steps);
  const last = state.steps.at(-1);
  const first = blocked(state.queue);
  const waits = state.queue.reduce((sum, each) => sum + each.sequences, 0);
  const runs = sequences === 0 ? (last ? `Nothing runs; the last step was ${duration(Math.max(1, Math.round(now - last.at_s)))} ago` : "Nothing has run yet")
    : `${count(sequences, "sequence")} ${sequences === 1 ? "runs" : "run"} at ${duration(seconds)} a step${times === null ? "" : `, ${number(times, 2)} × the floor`}`;
  const queue = first ? `; ${first.sequences} of ${first.tenant} ${first.sequences === 1 ? "waits" : "wait"} for ${reasonText(first.reason)}${
    waits > first.sequences ? `, ${waits} wait in all` : ""}` : "";
  return { text: `${runs}${queue}.`, level: first && first.oldest_s > 1 ? "warn" : sequences ? "good" : "quiet" };
}

/** How far a running turn is: `512 of 1,204 in`, `312 out`. */
export function progressText({ computed_tokens, known_tokens, output_tokens }: Running): string {
  return output_tokens === 0 ? `${number(computed_tokens)} of ${number(known_tokens)} in` : `${number(output_tokens)} out`;
}

/** Whether a chunk was the last of its prompt, and gave the first token. */
export const isFirst = (cell: Cell): boolean => cell.kind === "chunk" && cell.output > 0;

export function cellText(cell: Cell): string {
  switch (cell.kind) {
    case "chunk": return `${number(cell.computed)} tokens of its prompt${isFirst(cell) ? `, then its first ${cell.output === 1 ? "token" : count(cell.output, "token")}` : ""}`;
    case "one": return count(cell.output, "token");
    case "accepted": return `${cell.output} tokens, ${cell.output - cell.rows} of ${cell.computed - cell.rows} proposals kept`;
    case "rejected": return `${count(cell.output, "token")}, none of ${count(cell.computed - cell.rows, "proposal")} kept`;
  }
}

export function stepText(step: Step): string {
  const parts = [step.prefill_tokens && `${number(step.prefill_tokens)} prompt tokens`, step.decode_rows && `${step.decode_rows} decode`,
    step.proposals && count(step.proposals, "proposal")].filter(Boolean).join(", ");
  const floor = step.floor_us ? `, ${number(step.us / step.floor_us, 2)} × its floor of ${duration(step.floor_us / 1e6)}` : ", floor not known";
  return `Step ${number(step.number)}: ${duration(step.us / 1e6)}${floor}${parts ? `; ${parts}` : ""}`;
}

export const COLOURINGS = ["tenant", "reuse", "age", "tier"] as const;
export type Colouring = (typeof COLOURINGS)[number];

const HOLDERS = ["free", "only the prefix cache", "one request", "2 share it", "3-4", "5-8", "9-16", "17 and more"] as const;
const AGES = ["less than 1 s", "1 s", "10 s", "1 min", "10 min", "1 h"] as const;
const ADAPTER = "adapter weights";

/** Class of a block of the device in a colouring, as an index into `classNames`. */
export function classOf(state: number, owner: number, colouring: Colouring, tenants: number): number {
  const holders = state & 7;
  if (colouring === "tenant") {
    if (state & 8) return tenants + 3;
    if (holders === 0) return 0;
    return owner === NOBODY ? tenants + 2 : owner === OTHERS || owner >= tenants ? tenants + 1 : owner + 1;
  }
  if (colouring === "tier") return state & 8 ? 3 : Math.min(holders, 2);
  if (state & 8) return 8;
  if (colouring === "reuse") return holders;
  return holders === 0 ? 0 : holders > 1 ? 1 : 2 + Math.min(5, (state >> 4) & 7);
}

/** Cells of the tiers below, coloured by tier: a cell a block, or several where there are many more than on the device. */
const CELLS_BELOW = 20_000;

export function blocksACell(tiers: LiveState["tiers"]): number {
  return Math.max(1, Math.ceil(tiers.reduce((sum, { blocks }) => sum + blocks, 0) / CELLS_BELOW));
}

/** Class of each cell of the map: the device's blocks and, coloured by tier, those of the tiers below it. */
export function classesOf({ states, owners, tenants, tiers }: Pick<LiveState, "states" | "owners" | "tenants" | "tiers">, colouring: Colouring): Uint16Array {
  const below = colouring === "tier" ? tiers.map(({ blocks }) => Math.ceil(blocks / blocksACell(tiers))) : [];
  const classes = new Uint16Array(states.length + below.reduce((sum, cells) => sum + cells, 0));
  for (let block = 0; block < states.length; block += 1) classes[block] = classOf(states[block] ?? 0, owners[block] ?? NOBODY, colouring, tenants.length);
  let first = states.length;
  for (const [tier, cells] of below.entries()) classes.fill(ON_DEVICE + tier, first, (first += cells));
  return classes;
}

/** Classes of the device's own blocks when coloured by tier: free, cached, held, adapter weights. */
export const ON_DEVICE = 4;

export function classNames(colouring: Colouring, tenants: string[], tiers: LiveState["tiers"] = []): string[] {
  if (colouring === "tier") return ["free on the device", "cached on the device", "held on the device", ADAPTER, ...tiers.map(({ name }) => `tier ${name}`)];
  if (colouring === "tenant") return ["free", ...tenants, "other tenants", "nobody's", ADAPTER];
  if (colouring === "reuse") return [...HOLDERS, ADAPTER];
  return ["free", "held", ...AGES.map((age, index) => (index === 0 ? `idle ${age}` : `idle from ${age}`)), ADAPTER];
}

/** Cells of each class. */
export function countClasses(classes: Uint16Array): Uint32Array {
  const counts = new Uint32Array(512);
  for (const each of classes) counts[each] = (counts[each] ?? 0) + 1;
  return counts;
}

/** What the map's byte says of a block. */
export function blockText(state: number, owner: number, tenants: string[]): string {
  const holders = state & 7;
  const whose = owner === NOBODY ? "" : owner === OTHERS ? " of one of more tenants" : ` of ${tenants[owner] ?? "another tenant"}`;
  if (state & 8) return `weights of an adapter${whose}`;
  if (holders === 0) return "free";
  const cached = state & 128 ? "; the prefix cache names it" : "";
  if (holders === 1) return `kept by the prefix cache${whose}, idle for ${((state >> 4) & 7) === 0 ? AGES[0] : `${AGES[(state >> 4) & 7]} or more`}`;
  return `${holders === 2 ? "held by one request" : `shared by ${["", "", "", "2", "3-4", "5-8", "9-16", "17 or more"][holders]}`}${whose}${cached}`;
}

export function kvText({ kv_blocks, free_blocks, cached_blocks }: NonNullable<LiveState["totals"]>): string {
  const held = kv_blocks - free_blocks;
  return `${number(kv_blocks)} blocks: ${number(held)} held (${percent(kv_blocks ? held / kv_blocks : 0)}), ${number(cached_blocks)} kept by the prefix cache, ${
    number(free_blocks - cached_blocks)} empty.`;
}
