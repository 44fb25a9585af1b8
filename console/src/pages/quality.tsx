// Quality: evaluations by version, feedback, samples to review, and two runs beside one another.
import type { ComponentChildren } from "preact";
import { Badge, Empty, Loaded, Time } from "../components/basics";
import { Chart } from "../components/chart";
import { Table, type Column } from "../components/table";
import { Tabs } from "../components/tabs";
import { PageHead } from "../frame/head";
import { href, model, shownRange, type Range } from "../lib/address";
import { root, withQuery } from "../lib/api";
import { exampleCurl } from "../lib/curl";
import { number, percent } from "../lib/format";
import { useResource, useRows } from "../lib/resource";
import { hasRole } from "../lib/session";
import { CompareTab } from "./quality/compare";
import { ReviewTab } from "./quality/review";
import {
  byDay, comparison, differenceText, hasDropped, intervalText, qualitySentence, versionOf, wilson,
  type Quality, type Score, type VersionFeedback,
} from "./quality/text";

const SHOWN: Range[] = ["7d", "30d"];

export default function QualityPage() {
  const days = shownRange(SHOWN) === "7d" ? 7 : 30;
  const quality = useResource<Quality>(withQuery("console/api/quality", { days }));
  const told = quality.data.value;
  const shown = (content: (data: Quality) => ComponentChildren) => () => <Loaded of={quality} what="The quality">{content}</Loaded>;
  return (
    <>
      <PageHead title="Quality" ranges={SHOWN} sentence={told && qualitySentence(told)} />
      <Tabs label="Quality" tabs={[
        { id: "scores", title: "Evaluations", content: shown((data) => <Scores told={data} />) },
        { id: "feedback", title: "Feedback", content: shown((data) => <Feedback told={data} />) },
        ...(hasRole("admin") ? [{ id: "review", title: told?.unreviewed ? `Review (${told.unreviewed})` : "Review", content: () => <ReviewTab done={quality.reload} /> }] : []),
        { id: "compare", title: "Compare", content: () => <CompareTab /> },
      ]} />
    </>
  );
}

const SCORES: Column<Score>[] = [
  { key: "set", title: "Set", cell: (row) => `${row.set_name}, version ${row.set_version}`, value: (row) => row.set_name, grow: true },
  { key: "version", title: "Version", cell: (row) => versionOf(row), value: (row) => versionOf(row), line: 2 },
  { key: "score", title: "Score", number: true, cell: (row) => percent(row.score), value: (row) => row.score },
  { key: "passed", title: "Passed", number: true, cell: (row) => `${number(row.passed)} of ${number(row.total)}`, value: (row) => row.passed / Math.max(1, row.total), line: 2 },
  { key: "interval", title: "95 % interval of passed", number: true, cell: (row) => intervalText(wilson(row.passed, row.total)), line: 0 },
  {
    key: "baseline", title: "Against", value: (row) => row.baseline_score,
    cell: (row) => (row.baseline_score === null ? <span class="quiet">no baseline</span>
      : <Badge level={hasDropped(row) ? "bad" : "good"}>{hasDropped(row) ? "dropped from" : "holds"} {percent(row.baseline_score)}{row.baseline_version ? ` of ${row.baseline_version}` : ""}</Badge>),
  },
  { key: "at", title: "Run", cell: (row) => <Time at={row.created_at} />, value: (row) => row.created_at, line: 2 },
];

function Scores({ told }: { told: Quality }) {
  const rows = told.scores.filter((row) => !model.value || row.model === model.value);
  return (
    <Table label="Newest run of each set by each model" columns={SCORES} rows={rows} rowKey={(row) => row.run_id}
      rowHref={(row) => href(comparison(row.set_id, row.run_id, row.baseline_run_id ?? ""))}
      empty={<Empty what="Scores of versions on sets of questions are listed here once a set has been run."
        command={`kvarn eval add support questions.jsonl --url ${root} && kvarn eval run support --model ${model.value || "MODEL"} --url ${root}`} />} />
  );
}

const VERSIONS: Column<VersionFeedback>[] = [
  { key: "version", title: "Version", cell: (row) => versionOf(row), value: (row) => versionOf(row), grow: true },
  { key: "up", title: "Good", number: true, cell: (row) => <>{number(row.up)}<span class="on-phone"> good</span></>, value: (row) => row.up, line: 2 },
  { key: "down", title: "Bad", number: true, cell: (row) => <>{number(row.down)}<span class="on-phone"> bad</span></>, value: (row) => row.down, line: 2 },
  { key: "share", title: "Share good", number: true, cell: (row) => percent(row.share_up), value: (row) => row.share_up },
  { key: "interval", title: "95 % interval", number: true, cell: (row) => intervalText(row.interval), line: 0 },
  {
    key: "difference", title: "Beside the version with most ratings", line: 2, cell: (row) => {
      if (row.compared_with === null) return <span class="quiet">it is this one</span>;
      const { text, level } = differenceText(row.difference);
      return <><Badge level={level}>{text}</Badge> <span class="quiet">than {row.compared_with}</span></>;
    },
  },
];

interface Opinion {
  id: string;
  created_at: number;
  request_id: string;
  user: string;
  model: string;
  version: string;
  rating: "up" | "down" | null;
  score: number | null;
  comment: string | null;
  labels: string[];
}

const OPINIONS: Column<Opinion>[] = [
  { key: "at", title: "When", cell: (row) => <Time at={row.created_at} />, line: 2 },
  { key: "rating", title: "Rating", cell: (row) => (row.rating ? <Badge level={row.rating === "up" ? "good" : "bad"}>{row.rating === "up" ? "good" : "bad"}</Badge> : number(row.score)) },
  { key: "comment", title: "Comment", cell: (row) => row.comment ?? <span class="quiet">none</span>, grow: true },
  { key: "labels", title: "Labels", cell: (row) => row.labels.join(", "), line: 2 },
  { key: "version", title: "Version", cell: (row) => versionOf(row), line: 2 },
  { key: "user", title: "By", cell: (row) => row.user || <span class="quiet">-</span>, line: 0 },
];

function Feedback({ told }: { told: Quality }) {
  const { times, up, down } = byDay(told.feedback, model.value);
  const versions = told.versions.filter((row) => !model.value || row.model === model.value);
  return (
    <div class="stack">
      {times.length > 1 && (
        <section class="charts" aria-label="Charts">
          <Chart title="Ratings a day" times={times} series={[{ name: "good", values: up }, { name: "bad", values: down }]} />
        </section>
      )}
      <Table label="Feedback by version" columns={VERSIONS} rows={versions} rowKey={versionOf} sortName="versions" main={false}
        empty={<Empty what="Ratings of answers are summed by version here once a client has sent some."
          command={exampleCurl("v1/feedback", { request_id: "REQUEST", rating: "up", comment: "Right." })} />} />
      {hasRole("admin") ? <Comments /> : <p class="quiet">Single opinions and comments are shown to administrators.</p>}
    </div>
  );
}

function Comments() {
  const opinions = useRows<Opinion>(withQuery("v1/organization/feedback", { model: model.value }));
  return (
    <section class="section">
      <h2>Opinions, newest first</h2>
      <Loaded of={opinions} what="The opinions">
        {(list) => (
          <Table label="Opinions" columns={OPINIONS} rows={list.data} rowKey={(row) => row.id} rowHref={(row) => href("requests", { id: row.request_id, range: "30d" })}
            hasMore={list.has_more} loading={opinions.loading.value} onMore={opinions.more} empty={<Empty what="Nobody has said anything yet." />} />
        )}
      </Loaded>
    </section>
  );
}
