// What the stream has told so far: steps, turns and KV blocks, joined. No look in it.

export interface Turn {
  number: number;
  tenant: string;
  /** Null: the viewer may not see it. */
  request_id: string | null;
  adapter: string | null;
  priority: number;
  prompt_tokens: number;
  cached_tokens: number;
}

/** Turn, choices, tokens computed, tokens known, tokens drawn, blocks. */
export interface Running {
  turn: number;
  choices: number;
  computed_tokens: number;
  known_tokens: number;
  output_tokens: number;
  blocks: number;
}

export interface Queued {
  tenant: string;
  priority: number;
  reason: string;
  sequences: number;
  tokens: number;
  oldest_s: number;
}

export interface Replica {
  name: string;
  version: number;
  /** The checkpoint's; empty: not known yet. */
  fingerprint: string;
  state: string;
  stage: string;
  fraction: number;
  running: number;
  waiting: number;
  kv_blocks: number;
  free_blocks: number;
}

interface Tier {
  name: string;
  blocks: number;
  used_bytes: number;
  capacity_bytes: number;
}

interface Totals {
  kv_blocks: number;
  free_blocks: number;
  cached_blocks: number;
}

interface StepNumbers {
  number: number;
  at_s: number;
  us: number;
  floor_us: number;
  prefill_tokens: number;
  decode_rows: number;
  decode_context: number;
  proposals: number;
  free_blocks: number;
}

interface ToldStep extends StepNumbers {
  singles?: number[];
  rows: [turn: number, computed: number, output: number][];
}

/** A chunk of a prompt, one token, proposals of which some were kept, proposals of which none was. */
type CellKind = "chunk" | "one" | "accepted" | "rejected";

/** What a turn got in a step: tokens computed and drawn; its sequences that were in it. */
export interface Cell {
  computed: number;
  output: number;
  rows: number;
  kind: CellKind;
}

/** `cells` are by the number of the turn. */
export interface Step extends StepNumbers {
  cells: Map<number, Cell>;
}

export interface Frame {
  at_s: number;
  model?: string;
  replica?: string;
  problem?: string;
  steps?: ToldStep[];
  turns?: Turn[];
  running?: Running[];
  queue?: Queued[];
  totals?: Totals | null;
  replicas?: Replica[];
  blocks?: { blocks: number; tenants: string[]; tiers: Tier[]; runs: { first: number; states: string; owners: string }[] };
}

/** The problem that a stream begins with, until the engine has answered for the first time. */
export const NOT_YET = "the engine has not answered yet";
const MAX_STEPS = 200;

function bytesOf(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

export class LiveState {
  at = 0;
  model = "";
  replica = "";
  problem = "";
  steps: Step[] = [];
  turns = new Map<number, Turn>();
  running: Running[] = [];
  queue: Queued[] = [];
  totals: Totals | null = null;
  replicas: Replica[] = [];
  /** A byte a block, as docs/operate/live.md says. */
  states = new Uint8Array(0);
  owners = new Uint8Array(0);
  tenants: string[] = [];
  tiers: Tier[] = [];
  /** The step that drew the first token of a turn. */
  private firstDrawn = new Map<number, number>();
  /** Rises with each change of blocks. */
  blocksVersion = 0;

  /** Takes an event of the stream. `state` is the whole: nothing of before stays. */
  take(event: string, frame: Frame): void {
    if (event === "state") this.forget();
    this.at = frame.at_s;
    this.model = frame.model ?? this.model;
    this.replica = frame.replica ?? this.replica;
    this.problem = frame.problem ?? this.problem;
    this.running = frame.running ?? this.running;
    this.queue = frame.queue ?? this.queue;
    this.replicas = frame.replicas ?? this.replicas;
    if (frame.totals !== undefined) this.totals = frame.totals;
    for (const turn of frame.turns ?? []) this.turns.set(turn.number, turn);
    if (frame.steps?.length) this.addSteps(frame.steps);
    if (frame.blocks) this.changeBlocks(frame.blocks);
  }

  private forget(): void {
    this.steps = [];
    this.turns.clear();
    this.firstDrawn.clear();
    this.running = [];
    this.queue = [];
    this.totals = null;
    this.states = this.owners = new Uint8Array(0);
    this.tenants = [];
    this.tiers = [];
    this.blocksVersion += 1;
  }

  private addSteps(told: ToldStep[]): void {
    let singles: number[] = [];
    const added = told.map(({ singles: own, rows, ...numbers }) => {
      singles = own ?? singles;
      const cells: Step["cells"] = new Map();
      const add = (turn: number, computed: number, output: number): void => {
        const sum = cells.get(turn);
        cells.set(turn, { computed: computed + (sum?.computed ?? 0), output: output + (sum?.output ?? 0), rows: 1 + (sum?.rows ?? 0), kind: "one" });
      };
      for (const turn of singles) add(turn, 1, 1);
      for (const row of rows) add(...row);
      for (const [turn, cell] of cells) {
        cell.kind = kindOf(cell, (this.firstDrawn.get(turn) ?? Infinity) < numbers.number, numbers);
        if (cell.output > 0 && !this.firstDrawn.has(turn)) this.firstDrawn.set(turn, numbers.number);
      }
      return { ...numbers, cells };
    });
    const first = added[0]?.number ?? 0;
    this.steps = [...this.steps.filter(({ number }) => number < first), ...added].slice(-MAX_STEPS);
    if (this.turns.size > 2000) this.forgetTurns();
  }

  private forgetTurns(): void {
    const used = new Set([...this.running.map(({ turn }) => turn), ...this.steps.flatMap(({ cells }) => [...cells.keys()])]);
    for (const number of this.turns.keys()) if (!used.has(number) && this.turns.delete(number)) this.firstDrawn.delete(number);
  }

  private changeBlocks(told: NonNullable<Frame["blocks"]>): void {
    if (this.states.length !== told.blocks) {
      this.states = new Uint8Array(told.blocks);
      this.owners = new Uint8Array(told.blocks).fill(NOBODY);
    }
    for (const run of told.runs) {
      this.states.set(bytesOf(run.states), run.first);
      this.owners.set(bytesOf(run.owners), run.first);
    }
    this.tenants = told.tenants;
    this.tiers = told.tiers;
    this.blocksVersion += 1;
  }
}

export const NOBODY = 255;
export const OTHERS = 254;

/** What a turn did in a step. `drew`: it had drawn tokens before, so that its prompt was done. */
function kindOf({ computed, output, rows }: Omit<Cell, "kind">, drew: boolean, step: { prefill_tokens: number; proposals: number }): CellKind {
  if (output === 0) return "chunk";
  if (computed <= rows) return "one";
  if (!drew && step.prefill_tokens > 0 && computed <= step.prefill_tokens + step.proposals + rows) return "chunk";
  return output > rows ? "accepted" : "rejected";
}

/** Rows of the grid: what runs, oldest first, then what ended within the latest `steps`, latest first. At most `most`. */
export function rowsOf(state: LiveState, most: number, steps = MAX_STEPS): { turn: number; running: Running | null }[] {
  const running = new Map(state.running.map((each) => [each.turn, each]));
  const ended = new Set<number>();
  for (const step of state.steps.slice(-steps)) for (const turn of step.cells.keys()) if (!running.has(turn)) ended.add(turn);
  const live = [...running.values()].sort((one, other) => one.turn - other.turn).map((each) => ({ turn: each.turn, running: each }));
  const over = [...ended].sort((one, other) => other - one).map((turn) => ({ turn, running: null }));
  return [...live, ...over].slice(0, most);
}
