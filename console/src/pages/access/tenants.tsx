// Tenants, for platform administrators: made, archived, their shares and limits.
import { useSignal } from "@preact/signals";
import { Badge, Empty, Loaded, Secret } from "../../components/basics";
import { Dialog, ask } from "../../components/dialog";
import { TextField } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { href } from "../../lib/address";
import { call } from "../../lib/api";
import { bytes, count, number } from "../../lib/format";
import { useRows, type Rows } from "../../lib/resource";
import { ORGANIZATION, change } from "./change";

interface Tenant {
  id: string;
  name: string;
  status: "active" | "archived";
  weight: number;
  priority: number;
  retention_days: number | null;
  stored_bytes: number;
  admin_api_key?: { value: string };
}

const PATH = `${ORGANIZATION}/tenants`;

export function TenantsTab() {
  const tenants = useRows<Tenant>(PATH);
  const name = useSignal("");
  const made = useSignal<Tenant | null>(null);
  const edited = useSignal<Tenant | null>(null);
  const make = async (event: Event): Promise<void> => {
    event.preventDefault();
    const wanted = name.value.trim();
    const done = await change(`Tenant ${wanted} is made.`, async () => {
      made.value = await call<Tenant>(PATH, { method: "POST", body: { name: wanted } });
    });
    if (!done) return;
    name.value = "";
    tenants.reload();
  };
  return (
    <>
      {made.value?.admin_api_key && <Secret value={made.value.admin_api_key.value} what={`the first administrator's key of ${made.value.name}`} />}
      <form class="inline-form" onSubmit={(event) => void make(event)} aria-label="New tenant">
        <TextField label="Name of a new tenant" value={name.value} onChange={(value) => (name.value = value)} placeholder="acme" required />
        <button type="submit" class="button primary">Make tenant</button>
      </form>
      <Loaded of={tenants} what="The tenants">
        {(list) => (
          <Table label="Tenants" columns={columns(tenants, (row) => (edited.value = row))} rows={list.data} rowKey={(row) => row.id}
            rowHref={(row) => href("usage", { organization: row.id, group: "project" })}
            hasMore={list.has_more} loading={tenants.loading.value} onMore={tenants.more} empty={<Empty what="No tenant yet." />} />
        )}
      </Loaded>
      {edited.value && <EditTenant key={edited.value.id} tenant={edited.value} close={() => (edited.value = null)} done={tenants.reload} />}
    </>
  );
}

function columns(tenants: Rows<Tenant>, edit: (tenant: Tenant) => void): Column<Tenant>[] {
  return [
    { key: "name", title: "Tenant", cell: (row) => row.name, value: (row) => row.name, grow: true },
    { key: "status", title: "State", cell: (row) => <Badge level={row.status === "active" ? "good" : "quiet"}>{row.status}</Badge> },
    { key: "weight", title: "Share", number: true, cell: (row) => number(row.weight), value: (row) => row.weight, line: 0 },
    { key: "priority", title: "Best priority", number: true, cell: (row) => String(row.priority), value: (row) => row.priority, line: 0 },
    { key: "retention", title: "Data kept", cell: (row) => (row.retention_days === null ? "as the server" : count(row.retention_days, "day")), line: 2 },
    { key: "stored", title: "Stored", number: true, cell: (row) => bytes(row.stored_bytes), value: (row) => row.stored_bytes, line: 2 },
    {
      key: "act", title: "Actions", line: 2, cell: (row) => (
        <span class="above row">
          <a class="button small" href={href("access", { tab: "limits", tenant: row.id })}>Limits</a>
          <button type="button" class="button small" aria-label={`Change ${row.name}`} onClick={() => edit(row)}>Change</button>
          <button type="button" class="button small" onClick={() => void archive(row, tenants)} aria-label={`${row.status === "active" ? "Archive" : "Restore"} ${row.name}`}>
            {row.status === "active" ? "Archive" : "Restore"}
          </button>
        </span>
      ),
    },
  ];
}

async function archive(tenant: Tenant, tenants: Rows<Tenant>): Promise<void> {
  const active = tenant.status === "active";
  const set = (archived: boolean): Promise<unknown> => call(`${PATH}/${encodeURIComponent(tenant.id)}`, { method: "POST", body: { archived } });
  const agreed = !active || (await ask({ title: `Archive tenant ${tenant.name}?`, text: "All its keys stop working until it is restored. What it stores stays.", action: "Archive", danger: true }));
  if (!agreed) return;
  const undo = (): void => void change(`Tenant ${tenant.name} is as before.`, () => set(!active)).then(tenants.reload);
  if (await change(`Tenant ${tenant.name} is ${active ? "archived" : "restored"}.`, () => set(active), undo)) tenants.reload();
}

function EditTenant({ tenant, close, done }: { tenant: Tenant; close: () => void; done: () => void }) {
  const fields = [useSignal(tenant.name), useSignal(String(tenant.weight)), useSignal(String(tenant.priority)), useSignal(tenant.retention_days?.toString() ?? "")] as const;
  const [name, weight, priority, retention] = fields;
  const save = async (event: Event): Promise<void> => {
    event.preventDefault();
    const body = { name: name.value.trim(), weight: Number(weight.value), priority: Number(priority.value), retention_days: retention.value.trim() ? Number(retention.value) : null };
    if (!(await change(`Tenant ${body.name} is changed.`, () => call(`${PATH}/${encodeURIComponent(tenant.id)}`, { method: "POST", body })))) return;
    close();
    done();
  };
  return (
    <Dialog open title={`Tenant ${tenant.name}`} onClose={close}>
      <form class="stack" noValidate onSubmit={(event) => void save(event)}>
        <TextField label="Name" value={name.value} onChange={(value) => (name.value = value)} required autoFocus />
        <TextField label="Share of a full engine" type="number" value={weight.value} onChange={(value) => (weight.value = value)} hint="Against those of the others; 1 is usual." required />
        <TextField label="Best priority" type="number" value={priority.value} onChange={(value) => (priority.value = value)} hint="0 is interactive, 10 is batch; lower runs first." required />
        <TextField label="Days that its data is kept" type="number" value={retention.value} onChange={(value) => (retention.value = value)} hint="Empty: as the server's setting." />
        <div class="actions">
          <button type="button" class="button" onClick={close}>Cancel</button>
          <button type="submit" class="button primary">Save</button>
        </div>
      </form>
    </Dialog>
  );
}
