// Adapters of a model: loaded and unloaded while it runs.
import { useSignal } from "@preact/signals";
import { Empty, Time } from "../../components/basics";
import { ask } from "../../components/dialog";
import { TextField } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { href } from "../../lib/address";
import { send } from "../../lib/api";
import { bytes, number } from "../../lib/format";
import { change } from "../access/change";
import type { Adapter, ModelDetail } from "./types";

export function Adapters({ model, platform, reload }: { model: ModelDetail; platform: boolean; reload: () => void }) {
  const [name, path, open] = [useSignal(""), useSignal(""), useSignal(false)];
  const load = async (event: Event): Promise<void> => {
    event.preventDefault();
    const body = { lora_name: name.value.trim(), lora_path: path.value.trim(), model: model.name };
    if (!(await change(`Adapter ${body.lora_name} is loaded.`, () => send("v1/load_lora_adapter", { method: "POST", body })))) return;
    name.value = path.value = "";
    open.value = false;
    reload();
  };
  const unload = async (adapter: Adapter): Promise<void> => {
    const agreed = await ask({
      title: `Unload adapter ${adapter.name}?`, action: "Unload", danger: true,
      text: `Requests for it are refused from then on; those that have begun are finished. It can be loaded again from ${adapter.path}.`,
    });
    if (agreed && (await change(`Adapter ${adapter.name} is unloaded.`, () => send("v1/unload_lora_adapter", { method: "POST", body: { lora_name: adapter.name } })))) reload();
  };
  const columns: Column<Adapter>[] = [
    { key: "name", title: "Adapter", grow: true, value: (row) => row.name, cell: (row) => row.name },
    { key: "path", title: "Directory", line: 2, cell: (row) => <code>{row.path}</code> },
    { key: "rank", title: "Rank", number: true, line: 0, value: (row) => row.rank, cell: (row) => (row.rank ? number(row.rank) : "-") },
    { key: "bytes", title: "Memory", number: true, line: 0, value: (row) => row.bytes, cell: (row) => (row.bytes ? bytes(row.bytes) : "-") },
    { key: "loaded", title: "Loaded", line: 2, value: (row) => row.loaded_at, cell: (row) => (row.loaded_at ? <Time at={row.loaded_at} /> : <span class="quiet">with the model</span>) },
    ...(platform ? [{
      key: "unload", title: "Action",
      cell: (row: Adapter) => <span class="above"><button type="button" class="button small" aria-label={`Unload ${row.name}`} onClick={() => void unload(row)}>Unload</button></span>,
    }] : []),
  ];
  return (
    <section class="section">
      <header class="row models-head">
        <h2>Adapters</h2>
        {platform && <button type="button" class="button small" aria-expanded={open.value} onClick={() => (open.value = !open.value)}>Load an adapter</button>}
      </header>
      {open.value && (
        <form class="models-actions" aria-label="Load an adapter" onSubmit={(event) => void load(event)}>
          <TextField label="Name" value={name.value} onChange={(value) => (name.value = value)} required autoFocus />
          <TextField label="Directory on the server" value={path.value} onChange={(value) => (path.value = value)} placeholder="/models/support-lora" required />
          <button type="submit" class="button primary">Load</button>
        </form>
      )}
      <Table label="Adapters" columns={columns} rows={model.adapters} rowKey={(row) => row.name} sortName="adapters" main={false}
        rowHref={(row) => href("playground", { model: row.name })} empty={<Empty what={`${model.name} has no LoRA adapters.`} />} />
    </section>
  );
}
