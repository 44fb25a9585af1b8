// Knowledge: the vector stores of one's project, what is in them, and what a search finds.
import { useSignal } from "@preact/signals";
import { Badge, Empty, Loaded, Time, Unknown } from "../components/basics";
import { SelectField, TextField } from "../components/form";
import { Table, type Column } from "../components/table";
import { PageHead } from "../frame/head";
import { address, go, href } from "../lib/address";
import { call } from "../lib/api";
import { exampleCurl } from "../lib/curl";
import { bytes, number } from "../lib/format";
import { useRows } from "../lib/resource";
import { hasRole, session } from "../lib/session";
import { change } from "./access/change";
import { FilePage } from "./knowledge/file";
import { StorePage } from "./knowledge/store";
import { storeName, storeState, storesSentence, type Store } from "./knowledge/text";
import "./knowledge.css";

export default function KnowledgePage() {
  const [store, file] = address.value.rest;
  if (store && file) return <FilePage key={file} store={store} file={file} />;
  return store ? <StorePage key={store} id={store} /> : <Stores />;
}

function Stores() {
  const stores = useRows<Store>("v1/vector_stores");
  const told = stores.data.value;
  return (
    <>
      <PageHead title="Knowledge" sentence={told && storesSentence(told.data, told.has_more ?? false)} />
      <p class="quiet">Of {session.value?.project?.name ?? "your project"}, which your key belongs to. Models search it with the tool <code>file_search</code>.</p>
      {hasRole("usage") && <NewStore />}
      <Loaded of={stores} what="The vector stores">
        {(list) => (
          <Table label="Vector stores" columns={COLUMNS} rows={list.data} rowKey={(row) => row.id} rowHref={(row) => href(`knowledge/${row.id}`)}
            hasMore={list.has_more} loading={stores.loading.value} onMore={stores.more}
            empty={<Empty what="Sets of files that are searched together are listed here." command={exampleCurl("v1/vector_stores", { name: "handbook" })} />} />
        )}
      </Loaded>
    </>
  );
}

const COLUMNS: Column<Store>[] = [
  { key: "name", title: "Store", cell: (row) => storeName(row), value: (row) => storeName(row), grow: true },
  { key: "state", title: "State", cell: (row) => <Badge level={storeState(row).level}>{storeState(row).text}</Badge>, value: (row) => storeState(row).text },
  { key: "files", title: "Files", number: true, cell: (row) => <>{number(row.file_counts.total)}<span class="on-phone"> files</span></>, value: (row) => row.file_counts.total, line: 2 },
  { key: "passages", title: "Passages", number: true, cell: (row) => <>{number(row.passages)}<span class="on-phone"> passages</span></>, value: (row) => row.passages, line: 2 },
  { key: "bytes", title: "Size", number: true, cell: (row) => bytes(row.usage_bytes), value: (row) => row.usage_bytes, line: 2 },
  { key: "vectors", title: "Vectors of", cell: (row) => row.embedded_by ?? <Unknown why="none yet: words alone are compared" />, value: (row) => row.embedded_by, line: 0 },
  { key: "used", title: "Last use", cell: (row) => <Time at={row.last_active_at} />, value: (row) => row.last_active_at, line: 2 },
  { key: "expires", title: "Expires", cell: (row) => (row.expires_at ? <Time at={row.expires_at} /> : <span class="quiet">never</span>), value: (row) => row.expires_at, line: 0 },
];

const LIFETIMES = [{ value: "", label: "never" }, ...[7, 30, 90, 365].map((days) => ({ value: String(days), label: `after ${days} days without use` }))];

function NewStore() {
  const [name, model, days] = [useSignal(""), useSignal(""), useSignal("")];
  const make = async (event: Event): Promise<void> => {
    event.preventDefault();
    const body = {
      name: name.value.trim(),
      ...(model.value.trim() ? { embedding_model: model.value.trim() } : {}),
      ...(days.value ? { expires_after: { anchor: "last_active_at", days: Number(days.value) } } : {}),
    };
    await change(`Store ${body.name} is made.`, async () => {
      const made = await call<Store>("v1/vector_stores", { method: "POST", body });
      go(href(`knowledge/${made.id}`));
    });
  };
  return (
    <form class="inline-form" onSubmit={(event) => void make(event)} aria-label="New store">
      <TextField label="Name of a new store" value={name.value} onChange={(value) => (name.value = value)} placeholder="handbook" required />
      <TextField label="Embedding model" value={model.value} onChange={(value) => (model.value = value)} placeholder="the server's" />
      <SelectField label="Expires" value={days.value} onChange={(value) => (days.value = value)} choices={LIFETIMES} />
      <button type="submit" class="button primary">Make store</button>
    </form>
  );
}
