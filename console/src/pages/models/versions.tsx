// Versions of a model, newest first, and what each changed; an earlier one can serve again.
import { useEffect } from "preact/hooks";
import { Badge, Empty, Loaded, Time } from "../../components/basics";
import { ask } from "../../components/dialog";
import { Table, type Column } from "../../components/table";
import { call, withQuery } from "../../lib/api";
import { useResource, type Listed } from "../../lib/resource";
import { ORGANIZATION, change } from "../access/change";
import { changedSettings, isUnderWay, versionName } from "./text";
import type { Deployment, ModelDetail, Version } from "./types";

export function Versions({ model, deployment, reload }: { model: ModelDetail; deployment: Deployment | undefined; reload: () => void }) {
  const versions = useResource<Listed<Version>>(withQuery(`${ORGANIZATION}/deployments/versions`, { model: model.name }));
  const seen = `${deployment?.version} ${model.rollout?.candidate}`;
  useEffect(() => { if (versions.at.value) versions.reload(); }, [seen]);
  const serving = deployment?.version ?? model.version;
  const roll = (version: number): Promise<unknown> =>
    call(`${ORGANIZATION}/deployments/rollback`, { method: "POST", body: { model: model.name, version } });
  const serve = async (version: number): Promise<void> => {
    const name = versionName(model.name, version);
    const agreed = await ask({
      title: `Have ${name} serve?`, action: "Serve", danger: true,
      text: `${versionName(model.name, serving)} serves ${model.name} now. Its replicas are replaced a few at a time; requests that run are finished.`,
    });
    if (!agreed) return;
    const undo = (): void => void change(`${versionName(model.name, serving)} serves again.`, () => roll(serving)).then(reload);
    if (await change(`${name} serves ${model.name}.`, () => roll(version), undo)) reload();
  };
  const held = isUnderWay(model.rollout);
  const columns = (rows: Version[]): Column<Version>[] => [
    { key: "version", title: "Version", cell: (row) => versionName(model.name, row.version), value: (row) => row.version },
    { key: "state", title: "State", cell: (row) => (row.version === serving ? <Badge level="good">serves</Badge> : held && model.rollout?.candidate === versionName(model.name, row.version) ? <Badge level="warn">rolled out</Badge> : null) },
    { key: "changes", title: "Changed from the one before", grow: true, line: 2, cell: (row) => <Changes of={row} rows={rows} /> },
    { key: "created", title: "Made", cell: (row) => <><Time at={row.created_at} /> <span class="quiet">by {row.created_by}</span></>, value: (row) => row.created_at, line: 0 },
    ...(held ? [] : [{
      key: "serve", title: "Action",
      cell: (row: Version) => row.version !== serving && <button type="button" class="button small" aria-label={`Serve ${versionName(model.name, row.version)}`} onClick={() => void serve(row.version)}>Serve</button>,
    }]),
  ];
  return (
    <section class="section">
      <header class="row models-head">
        <h2>Versions</h2>
        {serving !== 0 && deployment?.previous_version === 0 && !held && (
          <button type="button" class="button small" onClick={() => void serve(0)}>Serve the configuration's version</button>
        )}
      </header>
      <Loaded of={versions} what="The versions">
        {(list) => (
          <Table label="Versions" columns={columns(list.data)} rows={list.data} rowKey={(row) => String(row.version)} sortName="versions" main={false}
            empty={<Empty what={`${model.name} is served as the configuration says. A version with other settings takes over step by step:`} command={`kvarn deploy ${model.name} --set engine.max_num_seqs=64 --canary 5,25,50`} />} />
        )}
      </Loaded>
    </section>
  );
}

function Changes({ of, rows }: { of: Version; rows: Version[] }) {
  const before = rows.find((each) => each.version < of.version);
  const changes = changedSettings(of.settings, before?.settings);
  if (!before) return <span class="quiet">the first version</span>;
  return changes.length ? <span class="models-changes">{changes.join("; ")}</span> : <span class="quiet">the same settings</span>;
}
