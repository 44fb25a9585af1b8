// A session: its requests on one time axis.
import { Empty, Loaded } from "../components/basics";
import { barPlace } from "../components/waterfall";
import { PageHead, type SentenceData } from "../frame/head";
import { address, href } from "../lib/address";
import { clock, count, duration, percent } from "../lib/format";
import { useResource } from "../lib/resource";
import { lanesOf } from "./requests/lanes";
import type { RequestRow } from "./requests/types";
import { statusText } from "./requests/words";
import "./requests.css";

export default function SessionPage() {
  const name = address.value.rest.join("/");
  const session = useResource<{ data: RequestRow[] }>(name ? `console/api/sessions/${encodeURIComponent(name)}` : null);
  const rows = session.data.value?.data;
  return (
    <>
      <PageHead title={name ? `Session ${name}` : "Session"} sentence={rows ? sentenceOf(rows) : name ? undefined : { text: "No session is named." }}>
        <a href={href("requests", name ? { session: name, range: "30d" } : {})}>As a list</a>
      </PageHead>
      {name ? <Loaded of={session} what="The session">{({ data }) => <Lanes rows={data} />}</Loaded>
        : <Empty what="A session is opened from one of its requests. Clients name it by prompt_cache_key or a conversation." />}
    </>
  );
}

/** The session in a sentence: its requests, how much of its time the server worked, and the slowest. */
function sentenceOf(rows: RequestRow[]): SentenceData {
  const [first, last] = [rows[0], rows.at(-1)];
  if (!first || !last) return { text: "No request of this session is kept." };
  const slowest = rows.reduce((one, other) => (other.total_s > one.total_s ? other : one));
  const prompt = rows.reduce((sum, row) => sum + row.input_tokens, 0);
  const cached = rows.reduce((sum, row) => sum + row.cached_tokens, 0);
  const failed = rows.filter((row) => row.outcome !== "finished").length;
  const reused = prompt ? ` ${percent(cached / prompt)} of the prompts' tokens were cached.` : "";
  return {
    text: `${count(rows.length, "request")} from ${clock(first.started_at)} to ${clock(last.started_at + last.total_s)}; the slowest took ${duration(slowest.total_s)}${failed ? `, ${failed} did not finish` : ""}.${reused}`,
    level: failed ? "warn" : "good",
    to: `requests/${slowest.id}`,
  };
}

function Lanes({ rows }: { rows: RequestRow[] }) {
  if (!rows.length) return <Empty what="None of its requests is kept, or none is yours to see. Of ordinary requests a sample is kept (traces.kept in the configuration)." />;
  const { lanes, cuts, shown } = lanesOf(rows);
  return (
    <>
      <div class="session-lanes">
        <div class="axis">
          {cuts.map(({ at, seconds }) => <span key={at} style={{ left: `${100 * at}%` }} title={`${duration(seconds)} without a request`}>⋯ {duration(seconds)}</span>)}
        </div>
        {lanes.map(({ row, begin, first, end }) => (
          <a key={row.id} class="lane-row" href={href(`requests/${row.id}`)}>
            <span class="name">{clock(row.started_at)} {row.output_tokens ? count(row.output_tokens, "token") : statusText(row)}</span>
            <span class="lane" aria-hidden="true">
              {cuts.map(({ at }) => <span key={at} class="cut" style={{ left: `${100 * at}%` }} />)}
              <span class="stage stage-queue" style={barPlace(begin, first, 1)} />
              {end > first && <span class="stage stage-decode" style={barPlace(first, end, 1)} />}
            </span>
            <span class="took">{duration(row.total_s)}</span>
          </a>
        ))}
      </div>
      <ul class="stage-key session-key">
        <li><span class="swatch stage stage-queue" aria-hidden="true" />until its first token</li>
        <li><span class="swatch stage stage-decode" aria-hidden="true" />its answer</li>
        <li>The axis shows {duration(shown)}{cuts.length > 0 && `; ${count(cuts.length, "idle time")} cut (⋯)`}.</li>
      </ul>
    </>
  );
}
