// A file of a vector store, as it was read: passage by passage.
import { Empty, Loaded } from "../../components/basics";
import { PageHead } from "../../frame/head";
import { href } from "../../lib/address";
import { count } from "../../lib/format";
import { useResource, type Listed } from "../../lib/resource";
import { errorText, type StoreFile } from "./text";

export function FilePage({ store, file }: { store: string; file: string }) {
  const path = `v1/vector_stores/${encodeURIComponent(store)}/files/${encodeURIComponent(file)}`;
  const found = useResource<StoreFile>(path);
  const texts = useResource<Listed<{ text: string }>>(`${path}/content`);
  const [data, passages] = [found.data.value, texts.data.value?.data];
  const text = data?.last_error ? errorText(data.last_error) : `${count(passages?.length, "passage")} ${passages?.length === 1 ? "was" : "were"} read from it.`;
  return (
    <>
      <PageHead title={data?.filename ?? "File"} sentence={data && passages && { text, level: data.last_error ? "bad" : "quiet" }}>
        <a href={href(`knowledge/${store}`)}>The store</a>
      </PageHead>
      <Loaded of={texts} what="The file's text">
        {(list) => (list.data.length === 0 ? <Empty what="No text of it is searched." /> : (
          <ol class="passages">{list.data.map((each, index) => <li key={index}><pre tabIndex={0} aria-label={`Passage ${index + 1}`}>{each.text}</pre></li>)}</ol>
        ))}
      </Loaded>
    </>
  );
}
