// Steps of the engine that a request was in: a small chart, and the slowest with what else was in them.
import { Empty, Loaded } from "../../components/basics";
import { Table, type Column } from "../../components/table";
import { href } from "../../lib/address";
import { duration, number } from "../../lib/format";
import { useResource } from "../../lib/resource";
import { isChunk, requestOf } from "./agents";
import { StepChart } from "./step-chart";
import { shared, type Shared } from "./shared";
import type { RequestDetail, TurnSteps } from "./types";

const SLOWEST = 5;

export function StepsTab({ detail }: { detail: RequestDetail }) {
  const steps = useResource<{ turns: Record<string, TurnSteps> }>(detail.with_steps ? `console/api/requests/${detail.request.id}/steps` : null);
  if (!detail.with_steps) {
    return <Empty what="The engine has forgotten the steps of this request: it remembers the last hour, until it restarts. Those of slow requests are kept with them; raise traces.kept.slowest to keep more." />;
  }
  return (
    <Loaded of={steps} what="The steps">
      {({ turns }) => <div class="stack">{Object.entries(turns).map(([id, told]) => <OfTurn key={id} id={id} told={told} many={Object.keys(turns).length > 1} />)}</div>}
    </Loaded>
  );
}

function OfTurn({ id, told, many }: { id: string; told: TurnSteps; many: boolean }) {
  const steps = shared(told);
  const own = steps.filter((step) => step.own);
  const beside = own.filter((step) => step.others.length > 0 || step.decodeRows > 1);
  const slowest = [...steps].sort((one, other) => other.seconds - one.seconds).slice(0, SLOWEST);
  return (
    <section class="section">
      {many && <h2>Turn <code>{id}</code></h2>}
      <p>
        It was in {number(own.length)} of the {number(steps.length)} steps between its acceptance and its end, {number(beside.length)} of them shared with other requests.
        {!told.complete && " Not all steps are told: there were too many, or the first are forgotten."}
      </p>
      <StepChart steps={steps} />
      <h2>The slowest {Math.min(SLOWEST, steps.length)}</h2>
      <Table label="Slowest steps" columns={COLUMNS} rows={slowest} rowKey={({ number: of }) => String(of)} main={false} sortName="steps" empty={<Empty what="No step is told." />} />
    </section>
  );
}

const COLUMNS: Column<Shared>[] = [
  { key: "step", title: "Step", number: true, cell: (step) => String(step.number) },
  { key: "at", title: "After acceptance", number: true, cell: ({ at }) => duration(at), value: ({ at }) => at, line: 2 },
  { key: "took", title: "Took", number: true, cell: ({ seconds }) => duration(seconds), value: ({ seconds }) => seconds },
  { key: "floor", title: "Floor", number: true, cell: ({ floor }) => duration(floor), value: ({ floor }) => floor, line: 2 },
  { key: "own", title: "Its own", cell: ({ own }) => (own ? `${own.computed} in, ${own.output} out` : "not in it"), line: 2 },
  { key: "prefill", title: "Prompt tokens", number: true, cell: ({ prefill }) => number(prefill), value: ({ prefill }) => prefill, line: 0 },
  { key: "rows", title: "Decoding", number: true, cell: ({ decodeRows }) => number(decodeRows), value: ({ decodeRows }) => decodeRows, line: 0 },
  { key: "free", title: "Free blocks", number: true, cell: ({ free }) => number(free), value: ({ free }) => free, line: 0 },
  { key: "with", title: "What else was in it", grow: true, line: 2, cell: (step) => <With step={step} /> },
];

function With({ step: { others, prefill } }: { step: Shared }) {
  if (!others.length) return <span class="quiet">nothing</span>;
  return (
    <>
      {others.slice(0, 3).map(({ turn, computed, output }, index) => {
        const words = isChunk(computed, output, prefill) ? `${number(computed)} prompt tokens of ${turn.tenant}` : `an answer of ${turn.tenant}`;
        return (
          <span key={index}>
            {index > 0 && ", "}
            {turn.request_id ? <a class="above" href={href(`requests/${requestOf(turn.request_id)}`)}>{words}</a> : words}
          </span>
        );
      })}
      {others.length > 3 && <span class="quiet"> and {others.length - 3} more</span>}
    </>
  );
}
