// Calls of tools, newest first: which tool, how long, what came of it.
import { Badge, Empty, Loaded, Time } from "../../components/basics";
import { SelectFilter } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { href, param } from "../../lib/address";
import { withQuery } from "../../lib/api";
import { exampleCurl } from "../../lib/curl";
import { bytes, duration } from "../../lib/format";
import { useRows } from "../../lib/resource";
import { projectId } from "../access/project";
import { CALL_LEVELS, callError, type Call } from "./text";

const COLUMNS: Column<Call>[] = [
  { key: "name", title: "Tool", cell: (row) => <code>{row.name}</code>, grow: true },
  { key: "type", title: "Type", cell: (row) => <>{row.type}{row.approved && <span class="quiet">, approved</span>}</>, line: 2 },
  { key: "status", title: "Outcome", cell: (row) => <Badge level={CALL_LEVELS[row.status] ?? "quiet"}>{row.status}</Badge> },
  { key: "took", title: "Took", number: true, cell: (row) => (row.duration_ms === null ? <span class="quiet" title="It runs, or its server stopped">-</span> : duration(row.duration_ms / 1000)), line: 2 },
  { key: "bytes", title: "Result", number: true, cell: (row) => (row.result_bytes === null ? "-" : bytes(row.result_bytes)), line: 0 },
  { key: "error", title: "Error", cell: (row) => callError(row.error), line: 0 },
  { key: "at", title: "When", cell: (row) => <Time at={row.created_at} />, line: 2 },
];

export function Calls({ path }: { path: string }) {
  const status = param("status");
  const calls = useRows<Call>(withQuery(path, { project: projectId(), status: status.value }));
  return (
    <>
      <div class="filters"><SelectFilter name="status" label="Outcome" all="any outcome" choices={Object.keys(CALL_LEVELS).map((value) => ({ value }))} /></div>
      <Loaded of={calls} what="The calls">
        {(list) => (
          <Table label="Calls of tools" columns={COLUMNS} rows={list.data} rowKey={(row) => row.id} rowHref={(row) => href("requests", { id: row.request, range: "30d" })}
            hasMore={list.has_more} loading={calls.loading.value} onMore={calls.more}
            empty={<Empty what={status.value ? "No call ended so." : "Calls of tools that the platform ran are listed here."}
              command={exampleCurl("v1/responses", { model: "MODEL", input: "What time is it?", tools: [{ type: "clock" }], tool_choice: { type: "clock" } })} />} />
        )}
      </Loaded>
    </>
  );
}
