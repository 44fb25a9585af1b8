// All that is known of a request as JSON, and ways to send it again.
import { CopyButton } from "../../components/basics";
import { root } from "../../lib/api";
import { useResource } from "../../lib/resource";
import { session } from "../../lib/session";
import { curlOf, testOf } from "./code";
import type { Contents, RequestDetail } from "./types";

export function Raw({ detail }: { detail: RequestDetail }) {
  const contents = useResource<Contents>(`console/api/requests/${detail.request.id}/contents`).data.value;
  const curl = curlOf(detail, root, contents, session.value?.open ?? false);
  const test = testOf(detail, root, contents);
  const { events, spans, explanation, ...rest } = detail;
  const blocks: [string, string][] = [
    ["Send it again", curl],
    ["As a test", test],
    ["Events", JSON.stringify(events, null, 1)],
    ["Explanation", JSON.stringify({ ...explanation, tokens: `${explanation.tokens.length} tokens: see the tab` }, null, 1)],
    ["Request", JSON.stringify(rest, null, 1)],
    ["Spans", JSON.stringify(spans, null, 1)],
  ];
  return (
    <div class="stack raw">
      {!contents?.prompt && <p class="request-note">The prompt is not kept, so that curl and the test have a placeholder for it. Parameters that Kvarn does not keep (sampling, tools) are left out.</p>}
      <p class="request-note">Trace <code>{detail.trace_id}</code> <CopyButton text={detail.trace_id} what="the trace id" /></p>
      {blocks.map(([title, text]) => (
        <section key={title} class="section">
          <h2>{title} <CopyButton text={text} what={title} /></h2>
          <pre tabIndex={0} aria-label={title}>{text}</pre>
        </section>
      ))}
    </div>
  );
}
