// Calls that wait: what would run, for whom; approved or refused, the model goes on.
import { useSignal } from "@preact/signals";
import { CopyButton, Empty, Loaded, Time } from "../../components/basics";
import { call } from "../../lib/api";
import { count } from "../../lib/format";
import type { Listed, Resource } from "../../lib/resource";
import { session } from "../../lib/session";
import { change } from "../access/change";
import { projectId } from "../access/project";
import { answerTo, byResponse, prettyJson, type Approval } from "./text";

export function Approvals({ approvals }: { approvals: Resource<Listed<Approval>> }) {
  const own = session.value?.project;
  return (
    <>
      {own && projectId() !== own.id && <p class="quiet">Those of {own.name}, your own project: other projects' calls are answered by their members.</p>}
      <Loaded of={approvals} what="The approvals">
        {({ data }) => (data.length === 0
          ? <Empty what="No call waits. Calls of tools with require_approval wait here, and at the client, when a response is stored; the newest 1,000 responses are looked at." />
          : <>{byResponse(data).map((waiting) => <Waiting key={waiting[0]?.response_id} waiting={waiting} answered={approvals.reload} />)}</>)}
      </Loaded>
    </>
  );
}

function Waiting({ waiting, answered }: { waiting: Approval[]; answered: () => void }) {
  const busy = useSignal(false);
  const first = waiting[0];
  if (!first) return null;
  const answer = async (approve: boolean): Promise<void> => {
    busy.value = true;
    let next = "";
    const done = await change(`${approve ? "Approved" : "Refused"}: ${first.model} goes on in a response of its own.`, async () => {
      const response = await call<Record<string, unknown>>(`v1/responses/${encodeURIComponent(first.response_id)}`);
      next = (await call<{ id: string }>("v1/responses", { method: "POST", body: answerTo(response, waiting, approve) })).id;
    });
    busy.value = false;
    if (done && next) answered();
  };
  const mine = waiting.every((each) => each.of_project);
  return (
    <section class="approval" aria-label={`Calls of ${first.response_id}`}>
      {waiting.map((each) => (
        <div key={each.id}>
          <h2><code>{each.server_label}.{each.name}</code></h2>
          <pre tabIndex={0} aria-label={`Arguments of ${each.name}`}>{prettyJson(each.arguments)}</pre>
        </div>
      ))}
      <p class="quiet">Asked <Time at={first.created_at} /> by {first.model}, in <code>{first.response_id}</code> <CopyButton text={first.response_id} what="the response's id" /></p>
      {mine ? (
        <p class="row">
          <button type="button" class="button primary" disabled={busy.value} onClick={() => void answer(true)}>Approve {count(waiting.length, "call")}</button>
          <button type="button" class="button" disabled={busy.value} onClick={() => void answer(false)}>Refuse</button>
          <span class="quiet">A call runs once, however often it is approved: a client that approves it later gets this result.</span>
        </p>
      ) : <p class="quiet">The client named this server by its URL, with credentials that are not kept: only the client can go on.</p>}
    </section>
  );
}
