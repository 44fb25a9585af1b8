// Limits of a project, one of its keys or a tenant, edited in place. An empty field is no limit.
import { useSignal } from "@preact/signals";
import { Empty, Loaded } from "../../components/basics";
import { Filters } from "../../components/form";
import { param } from "../../lib/address";
import { call } from "../../lib/api";
import { useRows, type Rows } from "../../lib/resource";
import { hasRole } from "../../lib/session";
import { ORGANIZATION, change, limitOf, limitText, type Key } from "./change";
import { ProjectChoice, projectId, projectName } from "./project";

interface RateLimit {
  id: string;
  model: string;
  max_requests_per_1_minute: number;
  max_tokens_per_1_minute: number;
  max_concurrent_requests: number;
}

type Bound = "max_requests_per_1_minute" | "max_tokens_per_1_minute" | "max_concurrent_requests";
const BOUNDS: [Bound, string][] = [
  ["max_requests_per_1_minute", "Requests a minute"], ["max_tokens_per_1_minute", "Tokens a minute"], ["max_concurrent_requests", "Requests at once"],
];

export function LimitsTab() {
  const [key, tenant] = [param("key"), param("tenant")];
  const path = `${ORGANIZATION}/projects/${encodeURIComponent(projectId())}`;
  const keys = useRows<Key>(`${path}/api_keys`, 100);
  const name = keys.data.value?.data.find((each) => each.id === key.value)?.name ?? key.value;
  return (
    <>
      <p class="quiet">A request must keep the limits of its tenant, its project and its key, all of them; what a row of a model does not bound, the row of all models (*) does. An empty field is no limit; it holds as soon as it is saved.</p>
      {tenant.value && hasRole("platform") ? (
        <>
          <button type="button" class="button small" onClick={() => (tenant.value = "")}>Show projects instead</button>
          <Limits title="All requests of the tenant together" path={`${ORGANIZATION}/tenants/${encodeURIComponent(tenant.value)}/rate_limits`} />
        </>
      ) : (
        <>
          <Filters>
            <ProjectChoice />
            <select aria-label="Key" value={key.value} onChange={(event) => (key.value = event.currentTarget.value)}>
              <option value="">no key chosen</option>
              {keys.data.value?.data.map((each) => <option key={each.id} value={each.id}>key {each.name}</option>)}
            </select>
          </Filters>
          <Limits title={`All requests of ${projectName(projectId())} together`} path={`${path}/rate_limits`} />
          {key.value && <Limits title={`Requests with key ${name}`} path={`${path}/api_keys/${encodeURIComponent(key.value)}/rate_limits`} />}
        </>
      )}
    </>
  );
}

function Limits({ title, path }: { title: string; path: string }) {
  const limits = useRows<RateLimit>(path, 100);
  return (
    <section class="section">
      <h2>{title}</h2>
      <Loaded of={limits} what="The limits">
        {(list) => list.data.length === 0 ? <Empty what="No model is served." /> : (
          <div class="table-wrap">
            <table aria-label={title}>
              <thead>
                <tr>
                  <th scope="col">Model</th>
                  {BOUNDS.map(([bound, text]) => <th scope="col" class="number" key={bound}>{text}</th>)}
                  <th scope="col"><span class="unseen">Save</span></th>
                </tr>
              </thead>
              <tbody>{list.data.map((limit) => <LimitRow key={`${path} ${limit.id} ${BOUNDS.map(([bound]) => limit[bound]).join()}`} limit={limit} path={path} limits={limits} />)}</tbody>
            </table>
          </div>
        )}
      </Loaded>
    </section>
  );
}

function LimitRow({ limit, path, limits }: { limit: RateLimit; path: string; limits: Rows<RateLimit> }) {
  const typed = useSignal<Record<Bound, string>>({
    max_requests_per_1_minute: limitText(limit.max_requests_per_1_minute),
    max_tokens_per_1_minute: limitText(limit.max_tokens_per_1_minute),
    max_concurrent_requests: limitText(limit.max_concurrent_requests),
  });
  const changed = BOUNDS.filter(([bound]) => typed.value[bound].trim() !== limitText(limit[bound]));
  const wrong = changed.some(([bound]) => Number.isNaN(limitOf(typed.value[bound])));
  const save = async (event: Event): Promise<void> => {
    event.preventDefault();
    const body = Object.fromEntries(changed.map(([bound]) => [bound, limitOf(typed.value[bound])]));
    const name = limit.model === "*" ? "all models" : limit.model;
    if (await change(`Limits for ${name} hold now.`, () => call(`${path}/${encodeURIComponent(limit.id)}`, { method: "POST", body }))) limits.reload();
  };
  const id = `limit-${path}-${limit.id}`.replaceAll(/[^\w-]/g, "-");
  return (
    <tr>
      <th scope="row">{limit.model === "*" ? "* (all models)" : limit.model}</th>
      {BOUNDS.map(([bound, text]) => (
        <td class="number" key={bound}>
          <input form={id} class="limit-input" inputMode="numeric" placeholder="no limit" aria-label={`${text}, ${limit.model}`} value={typed.value[bound]}
            aria-invalid={Number.isNaN(limitOf(typed.value[bound])) || undefined}
            onInput={(event) => (typed.value = { ...typed.value, [bound]: event.currentTarget.value })} />
        </td>
      ))}
      <td>
        <form id={id} onSubmit={(event) => void save(event)}>
          <button type="submit" class="button small" disabled={changed.length === 0 || wrong}>Save</button>
          {wrong && <span class="bad"> Whole numbers above 0.</span>}
        </form>
      </td>
    </tr>
  );
}
