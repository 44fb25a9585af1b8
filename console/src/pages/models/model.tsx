// One model: what it runs on, its replicas, adapters, rollout and versions.
import { useEffect } from "preact/hooks";
import { Badge, CopyButton, Empty, Facts, Loaded, Time, type Level } from "../../components/basics";
import { Checkpoint } from "../../components/checkpoint";
import { Table, type Column } from "../../components/table";
import { href } from "../../lib/address";
import { duration, number, percent } from "../../lib/format";
import { useResource, type Listed } from "../../lib/resource";
import { hasRole } from "../../lib/session";
import { Adapters } from "./adapters";
import { Control } from "./control";
import { RolloutSection } from "./rollout";
import { goldenText, isUnderWay, kvUse, versionName } from "./text";
import type { Deployment, ModelDetail, Replica } from "./types";
import { Versions } from "./versions";

/** `changed`: asks for the models again after a change. */
export function ModelView({ model, changed }: { model: ModelDetail; changed: () => void }) {
  const platform = hasRole("platform") && !model.external;
  const deployments = useResource<Listed<Deployment>>(platform ? "v1/organization/deployments" : null);
  // What the stream tells of versions and replicas means that the deployment has changed, too.
  const seen = [model.version, model.rollout?.phase, model.replicas.map((each) => each.name).join()].join(" ");
  useEffect(() => { if (deployments.at.value) deployments.reload(); }, [seen]);
  const reload = (): void => { deployments.reload(); changed(); };
  const deployment = deployments.data.value?.data.find((each) => each.model === model.name);
  return (
    <div class="stack">
      {deployment?.problem && <div class="error-box" role="alert"><strong>The deployment differs from what was asked:</strong><span>{deployment.problem}</span></div>}
      {platform && <Loaded of={deployments} what="The deployment">{() => deployment && <Control model={model} deployment={deployment} reload={reload} />}</Loaded>}
      <Facts facts={[
        ["Checkpoint", <><code>{model.path}</code> <CopyButton text={model.path} what="the checkpoint's path" /></>],
        ["Version", <>{versionName(model.name, model.version)}{model.fingerprint && <span title="Fingerprint of the checkpoint, as requests and evaluations name it"> · <code>{model.fingerprint}</code></span>}{deployment?.changed_at ? <span class="quiet"> since <Time at={deployment.changed_at} /> by {deployment.changed_by}</span> : null}</>],
        ["Kind", model.kind ?? "not known before it is ready"],
        ["Longest context", model.max_context_length === null ? "not known before it is ready" : `${number(model.max_context_length)} tokens`],
        ["KV cache", <a href={href("live", { model: model.name })}>{kvUse(model.replicas) === null ? "no replica" : `${percent(kvUse(model.replicas))} in use`}</a>],
        ["Requests", <a href={href("requests", { model: model.name })}>requests to {model.name}</a>],
        ...(model.aliases.length ? [["Also called", model.aliases.join(", ")] as [string, string]] : []),
      ]} />
      {isUnderWay(model.rollout) && platform && <RolloutSection model={model} reload={reload} />}
      <section class="section">
        <h2>Replicas</h2>
        <Table label="Replicas" columns={REPLICAS} rows={model.replicas} rowKey={(row) => row.name} sortName="replicas"
          rowHref={(row) => href("live", { model: model.name, replica: row.name })}
          empty={<Empty what={`${model.name} has no replica now.${platform ? " Wake it above." : ""}`} />} />
      </section>
      <Adapters model={model} platform={platform} reload={changed} />
      {platform && <Versions model={model} deployment={deployment} reload={reload} />}
      {platform && model.rollout && !isUnderWay(model.rollout) && <RolloutSection model={model} reload={reload} />}
    </div>
  );
}

const LEVELS: Record<string, Level> = { ready: "good", down: "bad", gone: "bad", starting: "warn", pending: "warn", draining: "warn" };

const REPLICAS: Column<Replica>[] = [
  { key: "name", title: "Replica", grow: true, value: (row) => row.name, cell: (row) => row.name },
  {
    key: "state", title: "State", value: (row) => row.state,
    cell: (row) => <><Badge level={LEVELS[row.state] ?? "quiet"}>{row.state}</Badge>{row.stage && <span class="quiet"> {row.stage}{row.progress ? `, ${percent(row.progress)}` : ""}</span>}</>,
  },
  { key: "version", title: "Checkpoint", line: 0, value: (row) => row.version, cell: (row) => <Checkpoint {...row} /> },
  { key: "running", title: "Running", number: true, line: 2, value: (row) => row.running, cell: (row) => <>{number(row.running)}<span class="models-phone"> running</span></> },
  { key: "waiting", title: "Waiting", number: true, line: 2, value: (row) => row.waiting, cell: (row) => <>{number(row.waiting)}<span class="models-phone"> waiting</span></> },
  { key: "kv", title: "KV in use", number: true, line: 2, value: (row) => kvUse([row]), cell: (row) => <>{percent(kvUse([row]))}<span class="models-phone"> KV</span></> },
  { key: "step", title: "Latest step", number: true, line: 0, value: (row) => row.step_s, cell: (row) => duration(row.step_s) },
  { key: "starts", title: "Starts", number: true, line: 0, value: (row) => row.starts, cell: (row) => number(row.starts) },
  { key: "build", title: "Runs with", line: 0, cell: (row) => [row.dtype, row.kernels].filter(Boolean).join(", ") || "-" },
  { key: "golden", title: "Golden prompts", line: 2, value: (row) => row.golden?.passed_at, cell: (row) => <GoldenCell replica={row} /> },
];

function GoldenCell({ replica: { golden } }: { replica: Replica }) {
  const { text, level } = goldenText(golden);
  if (!golden) return <span class="quiet" title="This gateway process asks none (quality.enabled, or another process does).">{text}</span>;
  return (
    <span title={`${golden.equal} probes as expected, ${golden.drifted} wrong, ${golden.unanswered} unanswered`}>
      <span class="models-phone">golden prompts </span>
      {level === "bad" ? <><Badge level="bad">{text}</Badge> {golden.problem} ({golden.action?.replace("_", " ")})</> : text}
      {golden.passed_at !== null && <span class="quiet">, <Time at={golden.passed_at} />, {number(golden.equal)} of {number(golden.equal + golden.drifted + golden.unanswered)}</span>}
    </span>
  );
}
