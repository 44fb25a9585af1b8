// One request: what it was, why it took as long as it did, what would have helped, and where its time went.
import type { ComponentChildren } from "preact";
import { Badge, Empty, ErrorBox, Loaded, Time, CopyButton } from "../../components/basics";
import { Tabs } from "../../components/tabs";
import { PageHead } from "../../frame/head";
import { href } from "../../lib/address";
import { duration, money } from "../../lib/format";
import { useResource } from "../../lib/resource";
import { Compare } from "./compare";
import { ContentsTab } from "./contents";
import { Raw } from "./raw";
import { StepsTab } from "./steps";
import { Timeline } from "./timeline";
import { Tokens } from "./tokens";
import type { Counterfactual, RequestDetail } from "./types";
import { cacheText, keptBecause, modelOf, requestSentence, statusLevel, statusText, tokensText } from "./words";

export function RequestPage({ id }: { id: string }) {
  const detail = useResource<RequestDetail>(`console/api/requests/${encodeURIComponent(id)}`);
  const data = detail.data.value;
  const error = detail.error.value;
  if (!data && error?.status === 404) return <NotKept id={id} message={error.message} />;
  if (!data && error) {
    return (
      <>
        <PageHead title="Request" sentence={{ text: "This request cannot be shown.", level: "bad" }} />
        <ErrorBox error={error} what="The request could not be loaded." retry={detail.reload} />
      </>
    );
  }
  return (
    <>
      <PageHead title={data?.name ?? "Request"} sentence={data && requestSentence(data.request, data.explanation)}>
        <a href={href("requests")}>All requests</a>
      </PageHead>
      <Loaded of={detail} what="The request">{(loaded) => <Content detail={loaded} />}</Loaded>
    </>
  );
}

function Content({ detail }: { detail: RequestDetail }) {
  return (
    <>
      <Changes changes={detail.explanation.counterfactuals} total={detail.explanation.total_s} />
      <HeadLine detail={detail} />
      {detail.warnings.map((warning) => <p key={warning} class="request-note warn">Warning to the client: {warning}</p>)}
      <Tabs label="Views of the request" tabs={[
        { id: "timeline", title: "Timeline", content: () => <Timeline detail={detail} /> },
        { id: "contents", title: "Prompt and answer", content: () => <ContentsTab request={detail.request} /> },
        { id: "tokens", title: "Tokens", content: () => <Tokens detail={detail} /> },
        { id: "steps", title: "Steps it shared", content: () => <StepsTab detail={detail} /> },
        { id: "raw", title: "Raw", content: () => <Raw detail={detail} /> },
        { id: "compare", title: "Compare with a typical one", content: () => <Compare detail={detail} /> },
      ]} />
    </>
  );
}

/** What would have helped, with the error of each. */
function Changes({ changes, total }: { changes: Counterfactual[]; total: number }) {
  if (!changes.length) return null;
  return (
    <ul class="changes" aria-label="What would have helped">
      {changes.map((change) => {
        const [low, high] = [Math.max(0, change.total_s - change.error_s), Math.min(total, change.total_s + change.error_s)];
        return (
          <li key={change.change} title={`Between ${duration(low)} and ${duration(high)}, by the learned times of steps`}>
            {change.text.replace(/\.$/, "")}{" "}
            <span class="band">{change.error_s > 0 ? `± ${duration(change.error_s)}` : ""}</span>
          </li>
        );
      })}
    </ul>
  );
}

function HeadLine({ detail: { request, currency, model_route, turns, metadata, cache } }: { detail: RequestDetail }) {
  const model = modelOf(request);
  const facts: [string, ComponentChildren][] = [
    ["", <Badge level={statusLevel(request)}>{statusText(request)}</Badge>],
    ["total", <b>{duration(request.total_s)}</b>],
    ["TTFT", request.ttft_s === null ? null : <b>{duration(request.ttft_s)}</b>],
    ["", <b>{tokensText(request)}</b>],
    ["cost", request.cost ? <b>{money(request.cost, currency)}</b> : null],
    ["response cache", cacheText(cache) && <b>{cacheText(cache)}</b>],
    ["model", model && <Filter name="model" value={model} text={request.model_version ? `${model}@${request.model_version}` : model} />],
    ["asked as", model_route || null],
    ["adapter", request.adapter || null],
    ["replica", request.replica || null],
    ["", <Filter name="project" value={request.project.id} text={`${request.organization.name} / ${request.project.name}`} />],
    ["key", request.key && <Filter name="key" value={request.key.id} text={`${request.key.name} ${request.key.redacted}`} />],
    ["user", request.user && <Filter name="user" value={request.user} text={request.user} />],
    ["session", request.session && <a href={href(`sessions/${encodeURIComponent(request.session)}`)}>{request.session}</a>],
    ["batch", request.batch_id && <Filter name="batch" value={request.batch_id} text={request.batch_id} />],
    ["error", request.error_code || null],
    ["ended", turns.flatMap((turn) => turn.finish_reasons ?? []).join(", ") || null],
    ["began", <Time at={request.started_at} absolute />],
    ["kept as", keptBecause(request.reason)],
    ...Object.entries(metadata),
    ["", <span><code>{request.request_id}</code> <CopyButton text={request.request_id} what="the request id" /></span>],
  ];
  return (
    <div class="request-head">
      {facts.map(([name, value], index) => (value === null || value === "" ? null : <span key={index}>{name} {value}</span>))}
    </div>
  );
}

/** A link to the requests that share a value with this one. */
function Filter({ name, value, text }: { name: string; value: string; text: string }) {
  return <a href={href("requests", { [name]: value })} title={`Requests with the same ${name}`}>{text}</a>;
}

function NotKept({ id, message }: { id: string; message: string }) {
  return (
    <>
      <PageHead title="Request" sentence={{ text: "This request is not kept, or is not yours to see.", level: "warn" }}>
        <a href={href("requests")}>All requests</a>
      </PageHead>
      <p>{message}</p>
      <Empty what={`Of ordinary requests a sample is kept, 20 a second by default; those that fail or are among the slowest 1 % of their model and hour are kept first. The oldest go when there are more than traces.kept.max_rows. A request appears about a second after it is over. To keep more, raise traces.kept.ordinary_per_s and set traces.kept.one_in to 1. The id was ${id}.`} />
    </>
  );
}
