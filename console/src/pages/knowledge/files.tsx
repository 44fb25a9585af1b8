// Files of a store: added by drop, watched while they are read, taken out.
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Badge, Empty, Loaded, Time } from "../../components/basics";
import { ask } from "../../components/dialog";
import { SelectFilter } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { href, param } from "../../lib/address";
import { call, withQuery } from "../../lib/api";
import { bytes, count, number, percent } from "../../lib/format";
import { asApiError, useRows } from "../../lib/resource";
import { hasRole } from "../../lib/session";
import { change } from "../access/change";
import { errorText, fileState, storeName, type Store, type StoreFile } from "./text";

const STATES = [{ value: "in_progress", label: "being read" }, { value: "completed", label: "found" }, { value: "failed", label: "failed" }, { value: "cancelled", label: "cancelled" }];

export function Files({ store, changed }: { store: Store; changed: () => void }) {
  const path = `v1/vector_stores/${encodeURIComponent(store.id)}/files`;
  const files = useRows<StoreFile>(withQuery(path, { filter: param("filter").value }));
  // The store is asked for again while files are read: they have come on, too.
  const seen = JSON.stringify([store.file_counts, store.passages]);
  useEffect(() => { if (files.at.value) files.reload(); }, [seen, store]);
  const remove = async (file: StoreFile): Promise<void> => {
    const agreed = await ask({ title: `Take ${file.filename} out of ${storeName(store)}?`, text: `Its ${count(file.passages ?? 0, "passage")} are found no more. The uploaded file stays, under Access.`, action: "Take out", danger: true });
    if (agreed && (await change(`${file.filename} is taken out.`, () => call(`${path}/${encodeURIComponent(file.id)}`, { method: "DELETE" })))) changed();
  };
  return (
    <section class="section">
      <h2>Files</h2>
      {hasRole("usage") && store.status !== "expired" && <Drop path={path} added={changed} />}
      <div class="filters"><SelectFilter name="filter" label="State" all="any state" choices={STATES} /></div>
      <Loaded of={files} what="The files">
        {(list) => (
          <Table label="Files" columns={columns(remove)} rows={list.data} rowKey={(row) => row.id} rowHref={(row) => href(`knowledge/${store.id}/${row.id}`)}
            hasMore={list.has_more} loading={files.loading.value} onMore={files.more}
            empty={<Empty what={param("filter").value ? "No file is in this state." : "No file yet. Drop some above: text, Markdown, HTML, PDF, DOCX, XLSX, CSV, JSON, source code."} />} />
        )}
      </Loaded>
    </section>
  );
}

function columns(remove: (file: StoreFile) => Promise<void>): Column<StoreFile>[] {
  return [
    { key: "name", title: "File", cell: (row) => row.filename, value: (row) => row.filename, grow: true },
    {
      key: "state", title: "State", value: (row) => row.status, cell: (row) => (
        <>
          <Badge level={fileState(row).level}>{fileState(row).text}</Badge>
          {row.status === "in_progress" && <> <progress class="budget-bar" max={1} value={row.progress ?? 0} aria-label={`${percent(row.progress ?? 0)} of ${row.filename} read`} /></>}
          {row.last_error && <div class="bad file-problem">{errorText(row.last_error)}</div>}
        </>
      ),
    },
    { key: "passages", title: "Passages", number: true, cell: (row) => <>{number(row.passages)}<span class="on-phone"> passages</span></>, value: (row) => row.passages, line: 2 },
    { key: "bytes", title: "Size", number: true, cell: (row) => bytes(row.usage_bytes), value: (row) => row.usage_bytes, line: 2 },
    { key: "readers", title: "Found by", cell: (row) => row.readers?.join(", ") ?? <span class="quiet">everybody</span>, line: 0 },
    { key: "added", title: "Added", cell: (row) => <Time at={row.created_at} />, value: (row) => row.created_at, line: 2 },
    ...(hasRole("usage") ? [{ key: "act", title: "Actions", line: 2 as const, cell: (row: StoreFile) => <span class="above"><button type="button" class="button small" aria-label={`Take out ${row.filename}`} onClick={() => void remove(row)}>Take out</button></span> }] : []),
  ];
}

/** Uploads files and puts each into the store; those that could not be are named, with why. */
function Drop({ path, added }: { path: string; added: () => void }) {
  const [over, done, problems] = [useSignal(false), useSignal<[number, number] | null>(null), useSignal<string[]>([])];
  const input = useRef<HTMLInputElement>(null);
  const add = async (chosen: FileList | null | undefined): Promise<void> => {
    const files = [...(chosen ?? [])];
    if (!files.length || done.value) return;
    problems.value = [];
    for (const [index, file] of files.entries()) {
      done.value = [index, files.length];
      const form = new FormData();
      form.append("purpose", "assistants");
      form.append("file", file);
      try {
        const { id } = await call<{ id: string }>("v1/files", { method: "POST", body: form });
        await call(path, { method: "POST", body: { file_id: id } });
      } catch (failure) {
        problems.value = [...problems.value, `${file.name}: ${asApiError(failure).message}`];
      }
      added();
    }
    done.value = null;
    if (input.current) input.current.value = "";
  };
  return (
    <>
      <div class={`drop ${over.value ? "over" : ""}`}
        onDragOver={(event) => { event.preventDefault(); over.value = true; }}
        onDragLeave={() => (over.value = false)}
        onDrop={(event) => { event.preventDefault(); over.value = false; void add(event.dataTransfer?.files); }}>
        <label>Drop files here, or choose them: <input ref={input} type="file" multiple disabled={done.value !== null} onChange={(event) => void add(event.currentTarget.files)} /></label>
        <span role="status">{done.value && `Uploading ${number(done.value[0] + 1)} of ${number(done.value[1])} …`}</span>
      </div>
      {problems.value.length > 0 && (
        <div class="error-box" role="alert"><strong>{count(problems.value.length, "file")} not added; the others are.</strong>{problems.value.map((each) => <span key={each}>{each}</span>)}</div>
      )}
    </>
  );
}
