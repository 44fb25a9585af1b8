// The queue, the replicas, and the grid's numbers as tables.
import type { ReadonlySignal } from "@preact/signals";
import { Badge, Empty } from "../../components/basics";
import { Checkpoint } from "../../components/checkpoint";
import { Table, type Column } from "../../components/table";
import { setQuery, withChanges, address, formatAddress } from "../../lib/address";
import { clock, count, duration, number, percent } from "../../lib/format";
import { ROWS_A_VIEW } from "../../lib/resource";
import type { LiveState, Queued, Replica, Running, Step } from "./state";
import { Who } from "./steps";
import { pace, progressText, reasonText } from "./words";

interface Seen {
  state: LiveState;
  /** Rises with each message. */
  changed: ReadonlySignal<number>;
}

const QUEUE: Column<Queued>[] = [
  { key: "tenant", title: "Tenant", cell: (row) => row.tenant, value: (row) => row.tenant, grow: true },
  { key: "reason", title: "Waits for", cell: (row) => reasonText(row.reason), value: (row) => row.reason },
  { key: "priority", title: "Priority", number: true, cell: (row) => <><span class="live-phone">priority </span>{row.priority}</>, value: (row) => row.priority, line: 2 },
  { key: "sequences", title: "Waiting", number: true, cell: (row) => <><span title={`${number(row.tokens)} tokens to compute, at most`}>{number(row.sequences)}</span><span class="live-phone"> waiting</span></>, value: (row) => row.sequences, line: 2 },
  { key: "oldest", title: "Oldest", number: true, cell: (row) => duration(row.oldest_s), value: (row) => row.oldest_s, line: 2 },
];

export function Queue({ queue }: { queue: Queued[] }) {
  return (
    <Table label="What waits in the engine" columns={QUEUE} rows={queue} sortName="queue" main={false}
      rowKey={(row) => `${row.tenant} ${row.priority} ${row.reason}`} empty={<Empty what="Nothing waits in the engine. What does is listed here by tenant, priority and reason." />} />
  );
}

/** Replicas of the model; a row opens it here. */
export function Replicas({ state, changed }: Seen) {
  void changed.value; // `state` stays the same object
  const columns: Column<Replica>[] = [
    { key: "name", title: "Replica", cell: (row) => (row.name === state.replica ? <strong>{row.name}</strong> : row.name), value: (row) => row.name, grow: true },
    { key: "state", title: "State", cell: (row) => <Badge level={row.state === "ready" ? "good" : row.state === "down" || row.state === "failed" ? "bad" : "warn"}>
      {row.state}{row.stage && row.stage !== row.state ? `: ${row.stage}` : ""}{row.fraction < 1 ? ` ${percent(row.fraction)}` : ""}</Badge> },
    { key: "version", title: "Checkpoint", cell: (row) => <Checkpoint {...row} />, value: (row) => row.version, line: 0 },
    { key: "running", title: "Running", number: true, cell: (row) => <>{number(row.running)}<span class="live-phone"> running</span></>, value: (row) => row.running, line: 2 },
    { key: "waiting", title: "Waiting", number: true, cell: (row) => <>{number(row.waiting)}<span class="live-phone"> waiting</span></>, value: (row) => row.waiting, line: 2 },
    { key: "kv", title: "KV held", number: true, cell: (row) => percent(row.kv_blocks ? 1 - row.free_blocks / row.kv_blocks : null), value: (row) => (row.kv_blocks ? 1 - row.free_blocks / row.kv_blocks : null), line: 2 },
    { key: "step", title: "Step time", number: true, cell: (row) => (row.name === state.replica ? duration(pace(state.steps).seconds) : <span title="Open it to see its steps">-</span>), line: 0 },
  ];
  const { page, rest, query } = address.value;
  return (
    <Table label="Replicas of the model" columns={columns} rows={state.replicas} rowKey={(row) => row.name} sortName="replicas"
      rowHref={(row) => formatAddress(page, rest, withChanges(query, { replica: row.name, block: null, model: state.model }))}
      empty={<Empty what="The model has no replica now." />} />
  );
}

/** The same numbers in words, for who does not see the grid, or wants to copy them. */
export function AsTables({ state, changed }: Seen) {
  void changed.value;
  const open = address.value.query.get("tables") === "1";
  return (
    <details open={open} onToggle={(event) => { if (event.currentTarget.open !== open) setQuery({ tables: event.currentTarget.open }); }}>
      <summary>The grid as tables</summary>
      {open && <div class="stack"><RunningTable state={state} changed={changed} /><StepTable steps={state.steps} /></div>}
    </details>
  );
}

function RunningTable({ state, changed }: Seen) {
  void changed.value;
  const recent = new Map<number, number>();
  for (const step of state.steps) for (const [turn, cell] of step.cells) recent.set(turn, (recent.get(turn) ?? 0) + cell.output);
  const columns: Column<Running>[] = [
    { key: "request", title: "Request", cell: (row) => <Who turn={state.turns.get(row.turn)} />, grow: true },
    { key: "tenant", title: "Tenant", cell: (row) => state.turns.get(row.turn)?.tenant ?? "-" },
    { key: "progress", title: "Progress", number: true, cell: progressText, line: 2 },
    { key: "choices", title: "Choices", number: true, cell: (row) => row.choices, line: 0 },
    { key: "recent", title: `Tokens in ${count(state.steps.length, "step")}`, number: true, cell: (row) => number(recent.get(row.turn) ?? 0), line: 0 },
    { key: "blocks", title: "KV blocks", number: true, cell: (row) => <>{number(row.blocks)}<span class="live-phone"> blocks</span></>, line: 2 },
  ];
  return <Table label="What runs" columns={columns} rows={state.running.slice(0, ROWS_A_VIEW)} hasMore={state.running.length > ROWS_A_VIEW} rowKey={(row) => String(row.turn)} main={false} empty={<p class="quiet">Nothing runs.</p>} />;
}

const STEPS: Column<Step>[] = [
  { key: "number", title: "Step", number: true, cell: (row) => number(row.number) },
  { key: "at", title: "Began", cell: (row) => clock(row.at_s) },
  { key: "time", title: "Time", number: true, cell: (row) => duration(row.us / 1e6) },
  { key: "floor", title: "Floor", number: true, cell: (row) => (row.floor_us ? duration(row.floor_us / 1e6) : "-"), line: 2 },
  { key: "requests", title: "Requests", number: true, cell: (row) => row.cells.size, line: 0 },
  { key: "prompt", title: "Prompt tokens", number: true, cell: (row) => number(row.prefill_tokens), line: 0 },
  { key: "proposals", title: "Proposals", number: true, cell: (row) => number(row.proposals), line: 0 },
  { key: "free", title: "Blocks not held", number: true, cell: (row) => number(row.free_blocks), line: 0 },
];

function StepTable({ steps }: { steps: Step[] }) {
  return <Table label="The latest steps" columns={STEPS} rows={steps.slice(-20).reverse()} rowKey={(row) => String(row.number)} main={false} empty={<p class="quiet">No step yet.</p>} />;
}
