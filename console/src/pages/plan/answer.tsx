// The plan: candidates in their order, and of one of them memory, time and money.
import { Badge, Empty } from "../../components/basics";
import { Chart } from "../../components/chart";
import { Table, type Column } from "../../components/table";
import { address, formatAddress, param, withChanges } from "../../lib/address";
import { bytes, duration, number, percent } from "../../lib/format";
import { Explained, ExplainedList, PartsBar } from "./explained";
import type { Question } from "./state";
import { breakEven, deviceText, dollars, layoutText, picked, sumOf, type TitleOf } from "./text";
import type { Candidate, Plan, Rejection } from "./types";

export function Answer({ plan, asked, titleOf }: { plan: Plan; asked: Question; titleOf: TitleOf }) {
  const shown = picked(plan, param("pick").value);
  return (
    <div class="stack plan-answer">
      <Table<Candidate> label="Candidates" rows={plan.candidates} rowKey={(row) => row.name} rowHref={(row) => hrefOf(row)}
        columns={columns(shown, titleOf)} empty={<Nothing plan={plan} />} />
      {shown && <Chosen of={shown} asked={asked} plan={plan} titleOf={titleOf} />}
      {plan.rejected.length > 0 && plan.candidates.length > 0 && <Rejected rows={plan.rejected} />}
      {plan.notes.length > 0 && <ul class="plan-notes quiet">{plan.notes.map((note) => <li key={note}>{note}</li>)}</ul>}
    </div>
  );
}

const hrefOf = (row: Candidate): string => formatAddress("plan", [], withChanges(address.value.query, { pick: row.name }));

function columns(shown: Candidate | undefined, titleOf: TitleOf): Column<Candidate>[] {
  return [
    {
      key: "devices", title: "Devices", grow: true, value: (row) => row.devices,
      cell: (row) => <>{deviceText(row, titleOf)} {row === shown && <Badge>shown below</Badge>}</>,
    },
    { key: "layout", title: "How", cell: (row) => layoutText(row), line: 2 },
    { key: "ttft", title: "TTFT", number: true, cell: (row) => duration(row.ttft.value), value: (row) => row.ttft.value, line: 0 },
    { key: "tpot", title: "TPOT", number: true, cell: (row) => duration(row.tpot.value), value: (row) => row.tpot.value, line: 0 },
    { key: "busy", title: "Busy", number: true, cell: (row) => percent(busiest(row)), value: busiest, line: 0 },
    { key: "hour", title: "An hour", number: true, cell: (row) => dollars(row.money.total.value), value: (row) => row.money.total.value, line: 2 },
    { key: "cost", title: "Million tokens", number: true, cell: (row) => dollars(row.money.per_million_tokens.value), value: (row) => row.money.per_million_tokens.value },
  ];
}

const busiest = (row: Candidate): number => Math.max(...row.pools.map((pool) => pool.utilisation.value));

function Nothing({ plan }: { plan: Plan }) {
  return (
    <div class="stack">
      <Empty what="No configuration that was considered keeps the targets. Loosen a target, choose other devices, or allow more bits and degrees." />
      <Rejected rows={plan.rejected} open />
    </div>
  );
}

function Rejected({ rows, open = false }: { rows: Rejection[]; open?: boolean }) {
  return (
    <details class="plan-more" open={open}>
      <summary>{rows.length === 1 ? "One configuration does not do" : `${number(rows.length)} configurations do not do`}</summary>
      <dl class="facts plan-rejected">
        {rows.map((row) => [<dt key={row.name}>{row.name}</dt>, <dd>{row.reason}</dd>])}
      </dl>
    </details>
  );
}

function Chosen({ of, asked, plan, titleOf }: { of: Candidate; asked: Question; plan: Plan; titleOf: TitleOf }) {
  return (
    <section class="stack" aria-label={of.name}>
      <header>
        <h2>{deviceText(of, titleOf)}: {layoutText(of)}</h2>
        {!of.is_served && <p><Badge level="warn">not served by this version of Kvarn</Badge></p>}
        <ul class="plan-reasons">{of.reasons.map((reason) => <li key={reason}>{reason}</li>)}</ul>
      </header>
      <Charts of={of} asked={asked} plan={plan} />
      <div class="columns">
        <PartsBar label="Memory of a device" parts={of.memory} total={`${bytes(sumOf(of.memory))} that the engine may take`} />
        <div class="stack">
          <PartsBar label="A decode step" parts={of.decode_step} total={`${duration(sumOf(of.decode_step))} for ${number(of.pools.at(-1)?.batch.value)} sequences`} />
          <PartsBar label="The mean prompt, alone" parts={of.prefill} total={duration(sumOf(of.prefill))} />
        </div>
      </div>
      <div class="columns">
        <ExplainedList label="Latency and load" items={[
          ["Time to first token", of.ttft], ["Time per output token", of.tpot],
          ...of.pools.flatMap((pool): [string, Candidate["ttft"]][] => {
            const role = pool.role === "serve" ? "" : ` (${pool.role})`;
            return [[`Requests a second at most${role}`, pool.capacity_rps], [`Busy${role}`, { ...pool.utilisation, unit: "share" }], [`Sequences at once${role}`, pool.batch]];
          }),
          ["Output tokens a second", of.throughput], ["Least time of a step", of.decode_floor], ["Least time of the mean prompt", of.prefill_floor],
          ["Compute-bound from", of.compute_bound_batch],
        ]} />
        <div class="stack">
          <ExplainedList label="Money" items={[
            ["A device for an hour", of.money.device_hour], ["All devices for an hour", of.money.devices], ["Services and egress for an hour", of.money.services],
            ["Together, for an hour", of.money.total], ["A million tokens", of.money.per_million_tokens], ["A million input tokens", of.money.per_million_input],
            ["A million output tokens", of.money.per_million_output], ["A million output tokens at full load", of.money.full_per_million_output],
            ["The API for the same hour", of.money.api_hour], ["Break-even with the API", of.money.break_even_tokens_per_day],
            ["Energy for a million tokens", of.money.energy], ["Power of the devices", of.money.power],
          ]} />
          <ExplainedList label="Room" items={[["Tokens in a replica's cache", of.kv_tokens], [`Sequences of ${number(of.max_context_length)} tokens at once`, of.users], ["Sequences of the traffic's length at once", of.largest_batch]]} />
        </div>
      </div>
      <section class="section" aria-label="The model">
        <h3>{plan.model}</h3>
        {plan.model_facts.map((part) => <Explained key={part.name} name={part.name} of={part.quantity} />)}
      </section>
    </section>
  );
}

function Charts({ of, asked, plan }: { of: Candidate; asked: Question; plan: Plan }) {
  const even = breakEven(of, asked);
  const curves = plan.curves.find((each) => each.candidate === of.name);
  const marks = [{ at: asked.rate, label: `${number(asked.rate)} requests/s: asked` }];
  const requests = { name: "requests", unit: "1/s" };
  return (
    <div class="charts">
      {curves && curves.cost.length > 1 && (
        <Chart title="A million tokens, with as many replicas as other rates need" unit="USD" over={{ ...requests, log: true }} times={curves.cost.map((point) => point.rate_rps)}
          series={[{ name: "cost", values: curves.cost.map((point) => point.dollars_per_million_tokens) }]} marks={marks} />
      )}
      {curves && curves.latency.length > 1 && (
        <Chart title="Time to first token of these replicas at other rates" unit="s" over={requests} times={curves.latency.map((point) => point.rate_rps)}
          series={[{ name: "TTFT", values: curves.latency.map((point) => point.ttft_s) }]} marks={marks} thresholds={[{ value: asked.ttft, label: "target" }]} />
      )}
      {even && (
        <Chart title="A day" unit="USD" over={{ name: "tokens a day" }} times={even.tokens}
          series={[{ name: "own", values: even.own }, { name: "API", values: even.api }]} marks={[{ at: even.now, label: "asked" }]} />
      )}
    </div>
  );
}
