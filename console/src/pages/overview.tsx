// Overview: is it healthy, how fast, how full, who uses it, what changed.
import { Badge, Empty, Loaded, Tiles, Time, type Level, type TileData } from "../components/basics";
import { Chart } from "../components/chart";
import { Table, type Column } from "../components/table";
import { PageHead } from "../frame/head";
import { RANGES, href, model, range, type Range } from "../lib/address";
import { withQuery } from "../lib/api";
import { exampleChat } from "../lib/curl";
import { duration, money, number, percent, sinceText, withUnit } from "../lib/format";
import { useResource } from "../lib/resource";
import { hasRole } from "../lib/session";

interface Figure {
  name: string;
  label: string;
  value: number | null;
  unit: string;
  link: string;
  target: number | null;
}

interface ModelRow {
  name: string;
  state: string;
  ready: boolean;
  ready_replicas: number;
  replicas: number;
  error: string | null;
  drifted: string[];
  requests_per_s: number | null;
  ttft_p95_s: number | null;
  tpot_p95_s: number | null;
  kv_utilisation: number | null;
  waiting: number | null;
}

interface UserRow {
  project_id: string;
  project: string;
  organization: string;
  requests: number;
  input_tokens: number;
  output_tokens: number;
  cost: number;
  currency: string;
}

interface History {
  at: number[];
  series: Record<string, (number | null)[]>;
  marks: { at: number; kind: string; model: string; count: number }[];
}

/** Answer of `GET /console/api/overview`. */
interface Overview {
  at: number;
  state: { level: Level; sentence: string; link: string; since: number | null };
  tiles: Figure[];
  history: History;
  models: ModelRow[];
  users: UserRow[] | null;
  changes: { at: number; by: string; text: string }[];
}

/** Charts: title, unit, and the history's series with the names of their lines. */
const CHARTS: { title: string; unit: string; lines: [series: string, name: string][]; target?: string }[] = [
  { title: "Requests", unit: "/s", lines: [["requests_per_s", "all"], ["errors_per_s", "failed"], ["refused_per_s", "refused"]] },
  { title: "Time to first token", unit: "s", lines: [["ttft_p50_s", "p50"], ["ttft_p95_s", "p95"]], target: "ttft_p95_s" },
  { title: "Time per output token, p95", unit: "s", lines: [["tpot_p95_s", "p95"]], target: "tpot_p95_s" },
  { title: "Tokens", unit: "/s", lines: [["input_tokens_per_s", "in"], ["cached_tokens_per_s", "cached"], ["output_tokens_per_s", "out"]] },
  { title: "Requests in the engines", unit: "", lines: [["running", "running"], ["waiting", "waiting"]] },
  { title: "KV cache in use", unit: "ratio", lines: [["kv_utilisation", "KV"]] },
];
const RANGES_SHOWN: Range[] = ["15m", "1h", "6h", "24h"];
const NAMES_OF_MARKS: Record<string, string> = { start: "server started", restart: "replica restarted", gateway_restart: "gateway process restarted" };

const MODELS: Column<ModelRow>[] = [
  { key: "name", title: "Model", cell: (row) => row.name, value: (row) => row.name, grow: true },
  { key: "state", title: "State", cell: (row) => <State row={row} /> },
  { key: "replicas", title: "Replicas", number: true, cell: (row) => `${row.ready_replicas} of ${row.replicas}`, line: 2 },
  { key: "requests", title: "Requests/s", number: true, cell: (row) => number(row.requests_per_s), value: (row) => row.requests_per_s, line: 0 },
  { key: "waiting", title: "Waiting", number: true, cell: (row) => number(row.waiting), value: (row) => row.waiting, line: 0 },
  { key: "ttft", title: "TTFT p95", number: true, cell: (row) => duration(row.ttft_p95_s), value: (row) => row.ttft_p95_s, line: 2 },
  { key: "tpot", title: "TPOT p95", number: true, cell: (row) => duration(row.tpot_p95_s), value: (row) => row.tpot_p95_s, line: 0 },
  { key: "kv", title: "KV cache", number: true, cell: (row) => percent(row.kv_utilisation), value: (row) => row.kv_utilisation, line: 2 },
];

function State({ row }: { row: ModelRow }) {
  const drifted = row.drifted.length > 0;
  const level = row.error || drifted ? "bad" : row.ready ? "good" : "warn";
  return <span title={row.error ?? undefined}><Badge level={level}>{drifted ? `${row.state}, drifted` : row.state}</Badge></span>;
}

const USERS: Column<UserRow>[] = [
  { key: "project", title: "Project", cell: (row) => (row.organization ? `${row.organization} / ${row.project}` : row.project), grow: true },
  { key: "requests", title: "Requests", number: true, cell: (row) => number(row.requests), value: (row) => row.requests, line: 2 },
  { key: "input", title: "Tokens in", number: true, cell: (row) => number(row.input_tokens), value: (row) => row.input_tokens, line: 2 },
  { key: "output", title: "Tokens out", number: true, cell: (row) => number(row.output_tokens), value: (row) => row.output_tokens, line: 2 },
  { key: "cost", title: "Cost", number: true, cell: (row) => money(row.cost, row.currency), value: (row) => row.cost },
];

export default function OverviewPage() {
  const shown = RANGES_SHOWN.includes(range.value) ? range.value : "24h"; // the history goes back a day
  const overview = useResource<Overview>(withQuery("console/api/overview", { range: shown, model: model.value }));
  const state = overview.data.value?.state;
  return (
    <>
      <PageHead title="Overview" ranges={RANGES_SHOWN}
        sentence={state && { text: sinceText(state.sentence, state.since, overview.data.value?.at ?? 0), level: state.level, to: state.link || null }} />
      <Loaded of={overview} what="The overview">{(data) => <Content data={data} seconds={RANGES[shown]} />}</Loaded>
    </>
  );
}

/** The tile of a figure; its level says whether a latency keeps its target. */
function tileOf({ name, label, value, unit, link, target }: Figure): TileData {
  const level = target === null || value === null ? "quiet" : value > target ? "bad" : "good";
  return { label, value: withUnit(value, unit), to: link, level, why: name === "kv_utilisation" ? "no replica reported it" : "no request in this range", ...(target === null ? {} : { note: `target ${withUnit(target, unit)}` }) };
}

function Charts({ data, seconds }: { data: Overview; seconds: number }) {
  const { at, series, marks } = data.history;
  const named = marks.map((mark) => ({
    at: mark.at,
    label: [NAMES_OF_MARKS[mark.kind] ?? mark.kind.replaceAll(/[._]/g, " "), mark.model].filter(Boolean).join(" of "),
  }));
  return (
    <section class="charts" aria-label="Charts">
      {CHARTS.map(({ title, unit, lines, target }) => {
        const goal = data.tiles.find((tile) => tile.name === target)?.target;
        return (
          <Chart key={title} title={title} unit={unit} times={at} marks={named} span={[data.at - seconds, data.at]} height={140}
            series={lines.map(([name, label]) => ({ name: label, values: series[name] ?? [] }))}
            thresholds={typeof goal === "number" ? [{ value: goal, label: `target ${withUnit(goal, unit)}` }] : []} />
        );
      })}
    </section>
  );
}

function Content({ data, seconds }: { data: Overview; seconds: number }) {
  return (
    <div class="stack">
      <Tiles tiles={data.tiles.map(tileOf)} />
      <Charts data={data} seconds={seconds} />
      <section class="section">
        <h2>Models</h2>
        <Table label="Models" columns={MODELS} rows={data.models} rowKey={(row) => row.name} rowHref={(row) => href(`models/${encodeURIComponent(row.name)}`)}
          sortName="models" empty={<Empty what="No model is served." />} />
      </section>
      <div class="columns">
        {hasRole("usage") && <section class="section">
          <h2>Who uses it</h2>
          {data.users === null ? <p class="quiet">The usage ledger does not answer now. Nothing of it is lost; load the page again.</p> : (
            <Table label="Projects by tokens" columns={USERS} rows={data.users} rowKey={(row) => row.project_id}
              rowHref={(row) => href("usage", { project: row.project_id })} sortName="users" main={false}
              empty={<Empty what="Projects by their tokens are listed here once requests have come in this range." command={exampleChat(data.models[0]?.name)} />} />
          )}
        </section>}
        <section class="section">
          <h2>What changed</h2>
          {data.changes.length === 0 ? <Empty what="Nothing was changed or deployed in this range." /> : (
            <dl class="facts">
              {data.changes.map((change) => [
                <dt><Time at={change.at} /></dt>,
                <dd>{change.text} <span class="quiet">by {change.by}</span></dd>,
              ])}
            </dl>
          )}
        </section>
      </div>
    </div>
  );
}
