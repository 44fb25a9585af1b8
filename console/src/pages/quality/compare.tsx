// Two runs of a set beside one another.
import { Badge, Empty, Facts, Loaded, type Level } from "../../components/basics";
import { Filters } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { param } from "../../lib/address";
import { withQuery } from "../../lib/api";
import { number, percent, relative } from "../../lib/format";
import { now } from "../../lib/now";
import { useResource, useRows } from "../../lib/resource";
import { differenceText, versionOf, type Interval } from "./text";

interface EvaluationSet {
  id: string;
  name: string;
  version: number;
}

interface Run {
  id: string;
  set_version: number;
  model: string;
  answered_by: string;
  version: string;
  status: string;
  created_at: number;
  score: number | null;
}

interface ChangedItem {
  item: number;
  score: number;
  baseline_score: number;
}

interface Comparison {
  statistics: {
    items: number;
    score: number;
    baseline_score: number;
    interval: Interval;
    better: number;
    worse: number;
    p_value: number;
    p_value_any_time: number;
    verdict: "better" | "worse" | "no difference shown";
  };
  changed: ChangedItem[];
}

const VERDICTS: Record<Comparison["statistics"]["verdict"], Level> = { better: "good", worse: "bad", "no difference shown": "quiet" };

export function CompareTab() {
  const [set, run, against] = [param("set"), param("run"), param("against")];
  const sets = useRows<EvaluationSet>("v1/evaluations", 100);
  const path = set.value ? `v1/evaluations/${encodeURIComponent(set.value)}/runs` : null;
  const runs = useRows<Run>(path, 100);
  const ready = path && run.value && against.value && run.value !== against.value;
  const found = useResource<Comparison>(ready ? withQuery(`${path}/${encodeURIComponent(run.value)}/compare`, { against: against.value }) : null);
  const completed = (runs.data.value?.data ?? []).filter((each) => each.status === "completed");
  const first = completed.find((each) => each.id === run.value);
  const others = completed.filter((each) => each.id !== run.value && (!first || each.set_version === first.set_version));
  return (
    <>
      <Filters>
        <select aria-label="Set" value={set.value} onChange={(event) => { set.value = event.currentTarget.value; run.value = against.value = ""; }}>
          <option value="">choose a set</option>
          {sets.data.value?.data.map((each) => <option key={each.id} value={each.id}>{each.name}</option>)}
        </select>
        <RunChoice label="Run" chosen={run} runs={completed} />
        <RunChoice label="Against" chosen={against} runs={others} />
      </Filters>
      {sets.data.value?.data.length === 0 && <Empty what="Your project has no evaluation set yet; two runs of one are compared here." command="kvarn eval add support questions.jsonl" />}
      {ready ? <Loaded of={found} what="The comparison">{(data) => <Result of={data} />}</Loaded>
        : set.value && completed.length < 2 && !runs.loading.value ? <p class="quiet">This set has {completed.length === 1 ? "one completed run" : "no completed run"}; two are needed.</p>
        : set.value && <p class="quiet">Choose two runs of the same version of the set.</p>}
    </>
  );
}

function RunChoice({ label, chosen, runs }: { label: string; chosen: { value: string }; runs: Run[] }) {
  return (
    <select aria-label={label} value={chosen.value} onChange={(event) => (chosen.value = event.currentTarget.value)}>
      <option value="">{label.toLowerCase()} …</option>
      {chosen.value && !runs.some((each) => each.id === chosen.value) && <option value={chosen.value}>{chosen.value}</option>}
      {runs.map((each) => (
        <option key={each.id} value={each.id}>
          {versionOf({ model: each.answered_by || each.model, version: each.version })}, {percent(each.score)}, {relative(each.created_at, now.value)}
        </option>
      ))}
    </select>
  );
}

const CHANGED: Column<ChangedItem>[] = [
  { key: "item", title: "Item", number: true, cell: (row) => String(row.item), value: (row) => row.item },
  { key: "score", title: "Score", number: true, cell: (row) => percent(row.score), value: (row) => row.score },
  { key: "before", title: "Against", number: true, cell: (row) => percent(row.baseline_score), value: (row) => row.baseline_score },
];

function Result({ of: { statistics, changed } }: { of: Comparison }) {
  return (
    <div class="stack">
      <Facts facts={[
        ["Verdict", <Badge level={VERDICTS[statistics.verdict]}>{statistics.verdict}</Badge>],
        ["Score", `${percent(statistics.score)} against ${percent(statistics.baseline_score)}, over ${number(statistics.items)} items`],
        ["Difference, 95 %", differenceText(statistics.interval).text],
        ["Passed in one only", `${number(statistics.better)} here, ${number(statistics.worse)} there`],
        ["Chance of it without a difference", `${number(statistics.p_value, 2)} for one look, ${number(statistics.p_value_any_time, 2)} however often one looks`],
      ]} />
      <section class="section">
        <h2>Items with another score, those that lost most first</h2>
        <Table label="Changed items" columns={CHANGED} rows={changed} rowKey={(row) => String(row.item)} empty={<Empty what="Every item has the same score in both." />} />
      </section>
    </div>
  );
}
