// What a query finds in a store, and why in this order.
import { useMemo } from "preact/hooks";
import { Empty, Loaded } from "../../components/basics";
import { Filters, SelectFilter, TextFilter } from "../../components/form";
import { href, param } from "../../lib/address";
import { number } from "../../lib/format";
import { useResource } from "../../lib/resource";
import { placeText, scoreParts, type Found, type Store } from "./text";

export function Search({ store }: { store: Store }) {
  const [query, ranker] = [param("q").value, param("ranker").value];
  const body = useMemo(() => ({ query, explain: true, ...(ranker ? { ranking_options: { ranker } } : {}) }), [query, ranker]);
  const searched = query && store.status !== "expired";
  const found = useResource<Found>(searched ? `v1/vector_stores/${encodeURIComponent(store.id)}/search` : null, body);
  return (
    <section class="section" aria-label="Search">
      <h2>What a query finds</h2>
      <Filters>
        <span class="knowledge-query"><TextFilter name="q" label="Query, as a model would ask" /></span>
        <SelectFilter name="ranker" label="Reranker" all="the server's reranker" choices={[{ value: "none", label: "no reranker" }]} />
      </Filters>
      {searched && <Loaded of={found} what="What it finds">{(told) => <Hits found={told} store={store} />}</Loaded>}
    </section>
  );
}

function Hits({ found, store }: { found: Found; store: Store }) {
  return (
    <>
      {found.degraded.map((each) => <p key={each} class="warn">{each}</p>)}
      {found.data.length === 0 && <Empty what="Nothing is found: no passage shares a word with the query, or none may be read by you." />}
      <ol class="hits" aria-label="Passages, best first">
        {found.data.map((hit, index) => (
          <li key={index}>
            <div class="hit-head">
              <span><a href={href(`knowledge/${store.id}/${hit.file_id}`)}>{hit.filename}</a> <span class="quiet">{placeText(hit.place)}</span></span>
              <span class="scores">
                {scoreParts(hit.scores).map(({ name, value, why }) => <span key={name} class="quiet" title={why}>{name} {number(value)}</span>)}
                <b title="What results are ordered by: the fusion, or the mean of it and the reranker's">{number(hit.score)}</b>
              </span>
            </div>
            <pre tabIndex={0} aria-label={`Passage of ${hit.filename}`}>{hit.content.map(({ text }) => text).join("\n")}</pre>
          </li>
        ))}
      </ol>
    </>
  );
}
