// Batches and files of one's own project.
import { Badge, Empty, Loaded, Time, type Level } from "../../components/basics";
import { ask } from "../../components/dialog";
import { Table, type Column } from "../../components/table";
import { href } from "../../lib/address";
import { call, root } from "../../lib/api";
import { exampleCurl } from "../../lib/curl";
import { bytes, number, percent } from "../../lib/format";
import { useRows, type Rows } from "../../lib/resource";
import { session } from "../../lib/session";
import { change } from "./change";

interface Batch {
  id: string;
  endpoint: string;
  status: string;
  model?: string;
  created_at: number;
  expires_at: number;
  input_file_id: string;
  output_file_id?: string;
  error_file_id?: string;
  request_counts: { total: number; completed: number; failed: number };
}

interface File {
  id: string;
  filename: string;
  bytes: number;
  purpose: string;
  created_at: number;
  expires_at?: number;
}

const LEVELS: Record<string, Level> = { completed: "good", failed: "bad", expired: "bad", cancelled: "quiet", cancelling: "warn" };
const RUNNING = ["validating", "in_progress", "finalizing"];
const content = (id: string): string => new URL(`v1/files/${encodeURIComponent(id)}/content`, root).href;

function Whose() {
  return <p class="quiet">Of {session.value?.project?.name ?? "your project"}, which your key belongs to.</p>;
}

export function BatchesTab() {
  const batches = useRows<Batch>("v1/batches");
  const cancel = async (batch: Batch): Promise<void> => {
    const { total, completed, failed } = batch.request_counts;
    const agreed = await ask({ title: `Cancel batch ${batch.id}?`, text: `${number(completed + failed)} of ${number(total)} requests are done; their answers stay, the others are not asked.`, action: "Cancel it", danger: true });
    if (agreed && (await change("The batch is being cancelled.", () => call(`v1/batches/${encodeURIComponent(batch.id)}/cancel`, { method: "POST" })))) batches.reload();
  };
  return (
    <>
      <Whose />
      <Loaded of={batches} what="The batches">
        {(list) => (
          <Table label="Batches" columns={batchColumns(cancel)} rows={list.data} rowKey={(row) => row.id} hasMore={list.has_more} loading={batches.loading.value} onMore={batches.more}
            rowHref={(row) => href("requests", { batch: row.id, since: row.created_at })}
            empty={<Empty what="Files of requests that run when there is room are listed here." command={exampleCurl("v1/batches", { input_file_id: "FILE", endpoint: "/v1/chat/completions", completion_window: "24h" })} />} />
        )}
      </Loaded>
    </>
  );
}

function batchColumns(cancel: (batch: Batch) => Promise<void>): Column<Batch>[] {
  return [
    { key: "id", title: "Batch", cell: (row) => <code>{row.id}</code>, copy: (row) => row.id, grow: true },
    { key: "status", title: "State", cell: (row) => <Badge level={LEVELS[row.status] ?? "warn"}>{row.status.replaceAll("_", " ")}</Badge>, value: (row) => row.status },
    { key: "model", title: "Model", cell: (row) => row.model ?? "-", line: 2 },
    {
      key: "done", title: "Done", line: 2, value: (row) => row.request_counts.completed, cell: ({ request_counts: { total, completed, failed } }) => (
        <>
          {total > 0 && <progress class="budget-bar" max={total} value={completed + failed} aria-label={`${percent((completed + failed) / total)} done`} />}{" "}
          {number(completed)} of {number(total)}{failed > 0 && <span class="bad">, {number(failed)} failed</span>}
        </>
      ),
    },
    { key: "created", title: "Made", cell: (row) => <Time at={row.created_at} />, value: (row) => row.created_at, line: 2 },
    {
      key: "act", title: "Actions", line: 2, cell: (row) => (
        <span class="above row">
          {row.output_file_id && <a class="button small" href={content(row.output_file_id)} download>Answers</a>}
          {row.error_file_id && <a class="button small" href={content(row.error_file_id)} download>Errors</a>}
          {RUNNING.includes(row.status) && <button type="button" class="button small" aria-label={`Cancel ${row.id}`} onClick={() => void cancel(row)}>Cancel</button>}
        </span>
      ),
    },
  ];
}

export function FilesTab() {
  const files = useRows<File>("v1/files");
  return (
    <>
      <Whose />
      <Loaded of={files} what="The files">
        {(list) => (
          <Table label="Files" columns={fileColumns(files)} rows={list.data} rowKey={(row) => row.id} hasMore={list.has_more} loading={files.loading.value} onMore={files.more}
            empty={<Empty what="Files that were uploaded, and answers of batches, are listed here." command={exampleCurl("v1/files", "-F purpose=batch -F file=@requests.jsonl")} />} />
        )}
      </Loaded>
    </>
  );
}

function fileColumns(files: Rows<File>): Column<File>[] {
  const remove = async (file: File): Promise<void> => {
    const agreed = await ask({ title: `Delete file ${file.filename}?`, text: `${bytes(file.bytes)}, of ${file.purpose.replaceAll("_", " ")}. This cannot be undone.`, action: "Delete", danger: true });
    if (agreed && (await change(`File ${file.filename} is deleted.`, () => call(`v1/files/${encodeURIComponent(file.id)}`, { method: "DELETE" })))) files.reload();
  };
  return [
    { key: "name", title: "File", cell: (row) => row.filename, value: (row) => row.filename, grow: true },
    { key: "id", title: "Id", cell: (row) => <code>{row.id}</code>, copy: (row) => row.id, line: 0 },
    { key: "purpose", title: "For", cell: (row) => row.purpose.replaceAll("_", " "), value: (row) => row.purpose, line: 2 },
    { key: "bytes", title: "Size", number: true, cell: (row) => bytes(row.bytes), value: (row) => row.bytes },
    { key: "created", title: "Made", cell: (row) => <Time at={row.created_at} />, value: (row) => row.created_at, line: 2 },
    { key: "expires", title: "Expires", cell: (row) => (row.expires_at ? <Time at={row.expires_at} /> : <span class="quiet">when it is deleted</span>), line: 0 },
    {
      key: "act", title: "Actions", line: 2, cell: (row) => (
        <span class="row">
          <a class="button small" href={content(row.id)} download={row.filename}>Download</a>
          <button type="button" class="button small" aria-label={`Delete ${row.filename}`} onClick={() => void remove(row)}>Delete</button>
        </span>
      ),
    },
  ];
}
