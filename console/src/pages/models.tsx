// Models: which are served, in which version, by what, and what is rolled out.
import { useEffect } from "preact/hooks";
import { Badge, Empty, Loaded } from "../components/basics";
import { Table, type Column } from "../components/table";
import { PageHead } from "../frame/head";
import { address, href, live, model as chosen } from "../lib/address";
import { useStream } from "../lib/events";
import { number, percent } from "../lib/format";
import { useResource } from "../lib/resource";
import { hasRole } from "../lib/session";
import { ModelView } from "./models/model";
import { servedText, isUnderWay, kvUse, levelOf, modelSentence, modelsSentence, rolloutText } from "./models/text";
import type { ModelDetail, Models } from "./models/types";
import "./models.css";

export default function ModelsPage() {
  const models = useResource<Models>("console/api/models");
  const stream = useStream(live.value ? "console/api/models/stream" : null, (event, data) => {
    if (event !== "models") return;
    models.data.value = data as Models;
    models.at.value = Date.now() / 1000;
    models.error.value = null;
  });
  const lost = stream.error.value;
  useEffect(() => {
    if (!lost) return;
    models.error.value = lost;
    models.at.value = Date.now() / 1000; // until now the stream would have told a change
  }, [lost !== null]);
  const asked = address.value.rest[0];
  const all = models.data.value?.models;
  const shown = all?.find((each) => each.name === asked || each.aliases.includes(asked ?? ""));
  if (asked === undefined) {
    const filtered = all?.filter((each) => !chosen.value || each.name === chosen.value);
    const said = filtered && modelsSentence(filtered);
    return (
      <>
        <PageHead title="Models" streams sentence={said && { ...said, to: said.model ? pageOf(said.model) : null }} />
        <Loaded of={models} what="The models">{() => <List models={filtered ?? []} />}</Loaded>
      </>
    );
  }
  return (
    <>
      <PageHead title={shown?.name ?? asked} streams
        sentence={all && (shown ? { ...modelSentence(shown), to: null } : { text: `No model ${asked} is served here, or your key may not use it.`, level: "warn" })}>
        <a class="button plain" href={href("models")}>All models</a>
      </PageHead>
      <Loaded of={models} what="The model">
        {() => shown
          ? <ModelView key={shown.name} model={shown} changed={models.reload} />
          : <Empty what="Models that are served are listed under All models." command={`kvarn deploy ${asked} --path PATH_OR_HUB_ID`} />}
      </Loaded>
    </>
  );
}

const pageOf = (name: string): string => `models/${encodeURIComponent(name)}`;
const sum = (model: ModelDetail, name: "running" | "waiting"): number => model.replicas.reduce((total, each) => total + each[name], 0);

function List({ models }: { models: ModelDetail[] }) {
  const columns: Column<ModelDetail>[] = [
    { key: "name", title: "Model", grow: true, value: (row) => row.name, cell: (row) => <>{row.name}{row.aliases.length > 0 && <span class="quiet"> also {row.aliases.join(", ")}</span>}</> },
    { key: "state", title: "State", cell: (row) => <Badge level={levelOf(row)}>{row.state}</Badge> },
    { key: "version", title: "Version · checkpoint", line: 2, value: (row) => row.version, cell: servedText },
    {
      key: "replicas", title: "Replicas ready", number: true, line: 2, value: (row) => row.replicas.length,
      cell: (row) => <>{row.replicas.filter((each) => each.state === "ready").length} of {row.replicas.length}<span class="models-phone"> replicas</span></>,
    },
    { key: "running", title: "Running", number: true, line: 0, value: (row) => sum(row, "running"), cell: (row) => number(sum(row, "running")) },
    { key: "waiting", title: "Waiting", number: true, line: 0, value: (row) => sum(row, "waiting"), cell: (row) => number(sum(row, "waiting")) },
    { key: "kv", title: "KV in use", number: true, line: 2, value: (row) => kvUse(row.replicas), cell: (row) => <>{percent(kvUse(row.replicas))}<span class="models-phone"> KV</span></> },
    { key: "adapters", title: "Adapters", number: true, line: 0, value: (row) => row.adapters.length, cell: (row) => number(row.adapters.length) },
    ...(hasRole("platform") ? [{
      key: "rollout", title: "Rollout", line: 2 as const,
      cell: (row: ModelDetail) => (isUnderWay(row.rollout) ? rolloutText(row.rollout) : <span class="quiet">none</span>),
    }] : []),
  ];
  return (
    <Table label="Models" columns={columns} rows={models} rowKey={(row) => row.name} rowHref={(row) => href(pageOf(row.name))}
      empty={<Empty what="Models are listed here once one is served." command="kvarn deploy chat --path kvarn-demo" />} />
  );
}
