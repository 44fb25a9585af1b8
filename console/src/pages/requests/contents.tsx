// Prompt and answer, where the project or the client had them kept, and who may see them.
import { Empty, ErrorBox, Loaded } from "../../components/basics";
import { AddToSet } from "../../components/add-to-set";
import { useResource } from "../../lib/resource";
import { citationsOf, messagesOf } from "./messages";
import type { Contents, RequestRow } from "./types";

export function ContentsTab({ request }: { request: RequestRow }) {
  const contents = useResource<Contents>(`console/api/requests/${request.id}/contents`);
  const error = contents.error.value;
  if (error?.status === 403 && !contents.data.value) return <ErrorBox error={error} what="Prompt and answer are not shown to you." />;
  return <Loaded of={contents} what="Prompt and answer">{(data) => <Shown data={data} request={request} />}</Loaded>;
}

function Shown({ data, request }: { data: Contents; request: RequestRow }) {
  if (!data.source) {
    return (
      <Empty what={`Prompt and answer are not kept: neither does the project ${request.project.name} log prompts, nor did the client ask for it ("store": true). Both are off unless someone turns them on; from then on members of ${request.organization.name} can read them here.`} />
    );
  }
  const why = data.source === "stored"
    ? `Kept because the client asked for it ("store": true). Members of ${request.organization.name} may read it; other tenants may not.`
    : `Kept, redacted and sealed, because the project ${request.project.name} logs prompts. Members of ${request.organization.name} may read it; the audit log now names you as a reader.`;
  const citations = citationsOf(data.answer);
  const answer = messagesOf(data.answer, "answer").map(({ text }) => text).join("\n");
  return (
    <div class="messages">
      <p class="request-note">{why}</p>
      {data.is_whole ? <p><AddToSet path={`console/api/requests/${request.id}/item`} answer={answer} /></p>
        : <p class="request-note">The response goes on from others, which are not shown here: it cannot be asked again alone.</p>}
      {[...messagesOf(data.prompt, "prompt"), ...messagesOf(data.answer, "answer")].map(({ role, text }, index) => (
        <section key={index}>
          <h3>{role}</h3>
          <pre tabIndex={0} aria-label={role}>{text}</pre>
        </section>
      ))}
      {citations.length > 0 && (
        <section>
          <h3>cites</h3>
          <ol class="cited">{citations.map(({ source, place }) => <li key={source + place}>{source} <span class="quiet">{place}</span></li>)}</ol>
        </section>
      )}
      {data.answer === null && <p class="request-note">The answer was not kept.</p>}
    </div>
  );
}
