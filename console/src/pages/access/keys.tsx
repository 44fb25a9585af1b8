// API keys of a project, and those of administrators: made, shown once, revoked.
import { useSignal } from "@preact/signals";
import { Badge, Empty, Loaded, Secret, Time } from "../../components/basics";
import { ask } from "../../components/dialog";
import { Filters, SelectField, TextField } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { href, param } from "../../lib/address";
import { call } from "../../lib/api";
import { now } from "../../lib/now";
import { useRows, type Rows } from "../../lib/resource";
import { ORGANIZATION, change, revocationText, usedLately, type Key } from "./change";
import { ProjectChoice, projectId, projectName } from "./project";

const LIFETIMES = [
  { value: "", label: "never" }, { value: "86400", label: "in a day" }, { value: "2592000", label: "in 30 days" },
  { value: "7776000", label: "in 90 days" }, { value: "31536000", label: "in a year" },
];

export function KeysTab() {
  const kind = param("kind");
  const admin = kind.value === "admin";
  const path = admin ? `${ORGANIZATION}/admin_api_keys` : `${ORGANIZATION}/projects/${encodeURIComponent(projectId())}/api_keys`;
  const keys = useRows<Key>(path);
  return (
    <>
      <Filters>
        <select aria-label="Kind of keys" value={kind.value} onChange={(event) => (kind.value = event.currentTarget.value)}>
          <option value="">Keys of a project</option>
          <option value="admin">Keys of administrators</option>
        </select>
        {!admin && <ProjectChoice />}
      </Filters>
      <NewKey key={path} path={path} admin={admin} keys={keys} />
      <Loaded of={keys} what="The keys">
        {(list) => (
          <Table label="Keys" columns={columns(path, keys, admin)} rows={list.data} rowKey={(row) => row.id}
            rowHref={(row) => href("requests", { key: row.id })}
            hasMore={list.has_more} loading={keys.loading.value} onMore={keys.more}
            empty={<Empty what={`${admin ? "The organisation" : projectName(projectId())} has no key. Make one above; its secret is shown once.`} />} />
        )}
      </Loaded>
    </>
  );
}

function columns(path: string, keys: Rows<Key>, admin: boolean): Column<Key>[] {
  return [
    { key: "name", title: "Name", cell: (row) => row.name, value: (row) => row.name, grow: true },
    { key: "value", title: "Key", cell: (row) => <code>{row.redacted_value}</code>, line: 2 },
    { key: "role", title: "Role", cell: (row) => <Badge>{admin ? "administer" : row.role === "member" ? "ask and see" : "ask"}</Badge> },
    { key: "owner", title: "Owner", cell: (row) => row.owner.user?.name ?? row.owner.service_account?.name ?? (admin ? "organisation" : "project"), line: 0 },
    { key: "scopes", title: "Scopes", cell: (row) => row.scopes?.join(", ") || "anything", line: 0 },
    { key: "used", title: "Last used", cell: (row) => (row.last_used_at ? <Time at={row.last_used_at} /> : <span class="quiet">never</span>), value: (row) => row.last_used_at, line: 2 },
    { key: "expires", title: "Expires", cell: (row) => (row.expires_at ? <Time at={row.expires_at} /> : <span class="quiet">never</span>), value: (row) => row.expires_at, line: 0 },
    {
      key: "revoke", title: "Actions", cell: (row) => (
        <span class="above row">
          {!admin && <a class="button small" href={href("access", { tab: "limits", project: projectId(), key: row.id })}>Limits</a>}
          <button type="button" class="button small" aria-label={`Revoke ${row.name}`} onClick={() => void revoke(path, row, keys)}>Revoke</button>
        </span>
      ),
    },
  ];
}

async function revoke(path: string, key: Key, keys: Rows<Key>): Promise<void> {
  const lately = await usedLately(key.id).catch(() => null);
  const agreed = await ask({ title: `Revoke key ${key.name}?`, text: revocationText(lately, key.last_used_at, now.value), action: "Revoke", danger: true });
  if (!agreed) return;
  if (await change(`Key ${key.name} is revoked.`, () => call(`${path}/${encodeURIComponent(key.id)}`, { method: "DELETE" }))) keys.reload();
}

/** A form of one line; the new key's secret in its place, once. */
function NewKey({ path, admin, keys }: { path: string; admin: boolean; keys: Rows<Key> }) {
  const [name, role, lifetime, scopes] = [useSignal(""), useSignal("service"), useSignal(""), useSignal("")];
  const made = useSignal<Key | null>(null);
  const make = async (event: Event): Promise<void> => {
    event.preventDefault();
    const body = {
      name: name.value.trim(),
      ...(lifetime.value ? { expires_in_seconds: Number(lifetime.value) } : {}),
      ...(admin ? {} : { role: role.value, scopes: scopes.value.split(/[\s,]+/).filter(Boolean) }),
    };
    const done = await change(`Key ${body.name} is made.`, async () => {
      made.value = await call<Key>(path, { method: "POST", body });
    });
    if (!done) return;
    name.value = "";
    keys.reload();
  };
  return (
    <>
      {made.value?.value && <Secret value={made.value.value} what={`the secret of ${made.value.name}`} />}
      <form class="inline-form" onSubmit={(event) => void make(event)} aria-label="New key">
        <TextField label="Name of a new key" value={name.value} onChange={(value) => (name.value = value)} placeholder="ci-deploy" required />
        {!admin && (
          <SelectField label="Role" value={role.value} onChange={(value) => (role.value = value)}
            choices={[{ value: "service", label: "ask models" }, { value: "member", label: "ask models, see requests and usage" }]} />
        )}
        <SelectField label="Expires" value={lifetime.value} onChange={(value) => (lifetime.value = value)} choices={LIFETIMES} />
        {!admin && <TextField label="Scopes" value={scopes.value} onChange={(value) => (scopes.value = value)} placeholder="models:chat endpoints:/v1/chat" />}
        <button type="submit" class="button primary">Make key</button>
      </form>
    </>
  );
}
