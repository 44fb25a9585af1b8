// One vector store: a search of it, its files, and more files by drop.
import { useEffect } from "preact/hooks";
import { CopyButton, ErrorBox, Facts, Loaded, Time } from "../../components/basics";
import { ask } from "../../components/dialog";
import { PageHead } from "../../frame/head";
import { go, href } from "../../lib/address";
import { call } from "../../lib/api";
import { bytes, count, number } from "../../lib/format";
import { useResource } from "../../lib/resource";
import { hasRole } from "../../lib/session";
import { change } from "../access/change";
import { Files } from "./files";
import { Search } from "./search";
import { storeName, storeSentence, type Store } from "./text";

const AGAIN_MS = 2000; // while files are being read

export function StorePage({ id }: { id: string }) {
  const path = `v1/vector_stores/${encodeURIComponent(id)}`;
  const found = useResource<Store>(path);
  const store = found.data.value;
  const reading = store?.status === "in_progress";
  useEffect(() => {
    if (!reading) return;
    const timer = setInterval(() => { if (!document.hidden) found.reload(); }, AGAIN_MS);
    return () => clearInterval(timer);
  }, [reading]);
  const remove = async (one: Store): Promise<void> => {
    const agreed = await ask({
      title: `Delete store ${storeName(one)}?`, action: "Delete", danger: true,
      text: `${count(one.passages, "passage")} of ${count(one.file_counts.total, "file")} are found no more; searches that name it fail. The uploaded files stay. This cannot be undone.`,
    });
    if (agreed && (await change(`Store ${storeName(one)} is deleted.`, () => call(path, { method: "DELETE" })))) go(href("knowledge"));
  };
  const error = found.error.value;
  return (
    <>
      <PageHead title={store ? storeName(store) : "Vector store"} sentence={store ? storeSentence(store) : error ? { text: "This vector store cannot be shown.", level: "bad" } : undefined}>
        <a href={href("knowledge")}>All stores</a>
        {store && hasRole("usage") && <button type="button" class="button small" onClick={() => void remove(store)}>Delete</button>}
      </PageHead>
      {error?.status === 404 && !store ? <ErrorBox error={error} what="It was deleted, has expired, or is another project's." /> : (
        <Loaded of={found} what="The vector store">{(one) => (
          <div class="stack">
            <Facts facts={[
              ["Id", <><code>{one.id}</code> <CopyButton text={one.id} what="the store's id" /></>],
              ["Holds", `${count(one.passages, "passage")}, ${bytes(one.usage_bytes)} with their vectors`],
              ["Vectors of", one.embedded_by ?? `none${one.embedding_model ? ` yet; ${one.embedding_model} is to make them` : ""}: words alone are compared`],
              ["Made", <Time at={one.created_at} />],
              ["Last use", <Time at={one.last_active_at} />],
              ["Expires", one.expires_at === null ? "never" : <><Time at={one.expires_at} />{one.expires_after && `, after ${number(one.expires_after.days)} days without use`}</>],
            ]} />
            <Search store={one} />
            <Files store={one} changed={found.reload} />
          </div>
        )}</Loaded>
      )}
    </>
  );
}
