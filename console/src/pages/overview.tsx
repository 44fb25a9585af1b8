// Overview: is it healthy, how fast, how full, who uses it, what changed.
import { Badge, Empty, Loaded, Tiles, Time, type Level } from "../components/basics";
import { Chart, type Mark, type Series } from "../components/chart";
import { Table, type Column } from "../components/table";
import { PageHead, type SentenceData } from "../frame/head";
import { href, model, range } from "../lib/address";
import { root, withQuery } from "../lib/api";
import { UNKNOWN, duration, money, number, percent, withUnit } from "../lib/format";
import { useResource } from "../lib/resource";

interface Figure {
  label: string;
  value: number | null;
  unit: string;
  to?: string;
  note?: string;
  level?: Level;
  why?: string;
}

interface ModelRow {
  name: string;
  version?: string | null;
  /** `serving`, `starting`, `asleep`, `failed`, ... */
  state: string;
  replicas: number;
  replicas_ready: number;
  requests_per_min?: number | null;
  ttft_p95_s?: number | null;
  kv_use?: number | null;
}

interface UserRow {
  id: string;
  name: string;
  requests: number;
  input_tokens: number;
  output_tokens: number;
  cost?: number | null;
}

interface Overview {
  sentence: SentenceData;
  tiles: Figure[];
  /** First and last second of the range. */
  span: [number, number];
  times: number[];
  charts: { title: string; unit: string; series: Series[]; thresholds?: { value: number; label: string }[] }[];
  marks: Mark[];
  models: ModelRow[];
  users: UserRow[];
  changes: { at: number; text: string; to?: string | null }[];
}

const MODELS: Column<ModelRow>[] = [
  { key: "name", title: "Model", cell: (row) => row.name, value: (row) => row.name, grow: true },
  { key: "version", title: "Version", cell: (row) => row.version ?? UNKNOWN, line: 2 },
  { key: "state", title: "State", cell: (row) => <Badge level={row.state === "serving" ? "good" : row.state === "failed" ? "bad" : "warn"}>{row.state}</Badge> },
  { key: "replicas", title: "Replicas", number: true, cell: (row) => `${row.replicas_ready} of ${row.replicas}`, line: 2 },
  { key: "requests", title: "Requests/min", number: true, cell: (row) => number(row.requests_per_min), value: (row) => row.requests_per_min, line: 0 },
  { key: "ttft", title: "TTFT p95", number: true, cell: (row) => duration(row.ttft_p95_s), value: (row) => row.ttft_p95_s, line: 2 },
  { key: "kv", title: "KV", number: true, cell: (row) => percent(row.kv_use), value: (row) => row.kv_use, line: 2 },
];

const USERS: Column<UserRow>[] = [
  { key: "project", title: "Project", cell: (row) => row.name, grow: true },
  { key: "requests", title: "Requests", number: true, cell: (row) => number(row.requests), value: (row) => row.requests, line: 2 },
  { key: "input", title: "Tokens in", number: true, cell: (row) => number(row.input_tokens), value: (row) => row.input_tokens, line: 2 },
  { key: "output", title: "Tokens out", number: true, cell: (row) => number(row.output_tokens), value: (row) => row.output_tokens, line: 2 },
  { key: "cost", title: "Cost", number: true, cell: (row) => money(row.cost), value: (row) => row.cost },
];

export default function OverviewPage() {
  const overview = useResource<Overview>(withQuery("console/api/overview", { range: range.value, model: model.value }));
  return (
    <>
      <PageHead title="Overview" sentence={overview.data.value?.sentence} ranges={["15m", "1h", "6h", "24h"]} />
      <Loaded of={overview} what="The overview">{(data) => <Content data={data} />}</Loaded>
    </>
  );
}

function Content({ data }: { data: Overview }) {
  const curl = `curl ${root}v1/chat/completions -H 'content-type: application/json' -d '{"model": "${data.models[0]?.name ?? "MODEL"}", "messages": [{"role": "user", "content": "Hello"}]}'`;
  return (
    <div class="stack">
      <Tiles tiles={data.tiles.map(({ value, unit, ...tile }) => ({ ...tile, value: withUnit(value, unit) }))} />
      <section class="charts" aria-label="Charts">
        {data.charts.map((chart) => (
          <Chart key={chart.title} {...chart} times={data.times} marks={data.marks} span={data.span} height={140} />
        ))}
      </section>
      <section class="section">
        <h2>Models</h2>
        <Table label="Models" columns={MODELS} rows={data.models} rowKey={(row) => row.name} rowHref={(row) => href(`models/${encodeURIComponent(row.name)}`)}
          sortName="models" empty={<Empty what="No model is served." />} />
      </section>
      <div class="columns">
        <section class="section">
          <h2>Who uses it</h2>
          <Table label="Projects by tokens" columns={USERS} rows={data.users} rowKey={(row) => row.id} rowHref={(row) => href("usage", { project: row.id })}
            sortName="users" main={false} empty={<Empty what="Projects by their tokens are listed here once requests have come in this range." command={curl} />} />
        </section>
        <section class="section">
          <h2>What changed</h2>
          {data.changes.length === 0 ? <Empty what="Nothing was changed, deployed or restarted in this range." /> : (
            <dl class="facts">
              {data.changes.map((change) => [
                <dt><Time at={change.at} /></dt>,
                <dd>{change.to ? <a href={href(change.to)}>{change.text}</a> : change.text}</dd>,
              ])}
            </dl>
          )}
        </section>
      </div>
    </div>
  );
}
