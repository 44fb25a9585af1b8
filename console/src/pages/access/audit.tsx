// The audit log: every administrative act, newest first.
import { CopyButton, Empty, Loaded, Time } from "../../components/basics";
import { Filters, SelectFilter, TextFilter } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { param } from "../../lib/address";
import { withQuery } from "../../lib/api";
import { useRows } from "../../lib/resource";
import { session } from "../../lib/session";
import { ORGANIZATION } from "./change";
import { actorText, eventText, objectOf, type AuditEntry } from "./audit-text";

const COLUMNS: Column<AuditEntry>[] = [
  { key: "at", title: "When", cell: (row) => <Time at={row.effective_at} />, line: 2 },
  { key: "what", title: "What", cell: (row) => eventText(row.type), grow: true },
  { key: "by", title: "By", cell: (row) => actorText(row) },
  { key: "project", title: "Project", cell: (row) => row.project?.name ?? <span class="quiet">-</span>, line: 2 },
  {
    key: "detail", title: "On", line: 2, cell: (row) => {
      const { id, ...detail } = objectOf(row);
      const text = JSON.stringify(detail, null, 2);
      return (
        <>
          <code>{id}</code> {id && <CopyButton text={id} what="the id" />}
          {text !== "{}" && <details class="audit-detail"><summary>Detail</summary><pre>{text}</pre></details>}
        </>
      );
    },
  },
];

export function AuditTab() {
  const [type, email, object, project] = ["event", "email", "object", "project"].map((name) => param(name).value);
  const entries = useRows<AuditEntry>(withQuery(`${ORGANIZATION}/audit_logs`, {
    "event_types[]": type, "actor_emails[]": email, "resource_ids[]": object, "project_ids[]": project,
  }));
  return (
    <>
      <Filters>
        <TextFilter name="event" label="Event, api_key.created" />
        <TextFilter name="email" label="E-mail of who did it" />
        <TextFilter name="object" label="Id it was done on" />
        <SelectFilter name="project" label="Project" choices={(session.value?.projects ?? []).map(({ id, name }) => ({ value: id, label: name }))} />
      </Filters>
      <Loaded of={entries} what="The audit log">
        {(list) => (
          <Table label="Audit log" columns={COLUMNS} rows={list.data} rowKey={(row) => row.id} hasMore={list.has_more} loading={entries.loading.value} onMore={entries.more}
            empty={<Empty what="No act of this kind is in the audit log. Whatever an administrator changes is listed here." />} />
        )}
      </Loaded>
    </>
  );
}
