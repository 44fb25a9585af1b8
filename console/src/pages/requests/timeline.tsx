// The waterfall of a request: its parts to scale, and who stood behind the chosen one.
import { StageKey, TimeAxis, Waterfall, flatten, type FlatPart } from "../../components/waterfall";
import { Ribbon } from "../../components/ribbon";
import { href, param } from "../../lib/address";
import { duration, percent } from "../../lib/format";
import { useResource } from "../../lib/resource";
import { others, requestOf, type Other } from "./agents";
import { folded } from "./fold";
import type { RequestDetail, TurnSteps } from "./types";

/** Causes that others' turns make. */
const BY_OTHERS = /^(queue: (slot|token budget|latency|KV blocks|priority)|shared|preempted)/;

export function Timeline({ detail }: { detail: RequestDetail }) {
  const { explanation } = detail;
  const chosen = param("part");
  const parts = folded(explanation.parts, explanation.total_s);
  const paths = flatten(parts, new Set(parts.map((part, index) => `/${index}:${part.name}`)));
  const part = paths.find(({ path }) => path === chosen.value);
  const stages = [...new Set(explanation.parts.map(({ stage }) => stage))];
  const choose = ({ path }: FlatPart): void => {
    chosen.value = chosen.value === path ? "" : path;
  };
  return (
    <div class="stack">
      <div>
        <Waterfall parts={parts} total={explanation.total_s} selected={chosen.value} onSelect={choose} />
        <p class="request-note">
          The parts follow one another and sum to {duration(explanation.total_s)}; {explanation.unexplained_s > 0
            ? `${duration(explanation.unexplained_s)} of them (${percent(explanation.unexplained_s / explanation.total_s)}) cannot be explained.`
            : "nothing of it is unexplained."}
        </p>
        <StageKey stages={stages} />
      </div>
      <Behind detail={detail} part={part} />
      {explanation.tokens.length > 0 && (
        <section class="section">
          <h2>Tokens</h2>
          <div class="own-axis"><TimeAxis total={explanation.total_s} /></div>
          <Ribbon cells={explanation.tokens} begin={0} end={explanation.total_s} />
          <p class="request-note">A cell a token, on the time axis of the whole request; its colour and height are its cause. Arrow keys read one.</p>
        </section>
      )}
    </div>
  );
}

/** Requests that were in the engine's steps during the chosen part, or during the cause of the whole. */
function Behind({ detail, part }: { detail: RequestDetail; part: FlatPart | undefined }) {
  const { cause, total_s } = detail.explanation;
  const wanted = part ? ["queue", "prefill", "decode"].includes(part.part.stage) : BY_OTHERS.test(cause.code);
  const steps = useResource<{ turns: Record<string, TurnSteps> }>(wanted && detail.with_steps ? `console/api/requests/${detail.request.id}/steps` : null);
  const title = part ? `${part.part.name}: ${duration(part.part.end_s - part.part.begin_s)}, ${percent((part.part.end_s - part.part.begin_s) / (total_s || 1))} of the total` : `Behind the cause: ${cause.code}`;
  if (!part && !wanted) return null;
  const told = steps.data.value;
  const [begin, end] = part ? [part.part.begin_s, part.part.end_s] : spanOf(detail);
  const found = told ? others(detail, told.turns, begin, end) : [];
  return (
    <div class="part-panel" role="status">
      <strong>{title}</strong>
      {part && <span>From {duration(part.part.begin_s)} to {duration(part.part.end_s)}. {part.part.detail}</span>}
      {wanted && !detail.with_steps && <span>Who else was in the engine is not known: its steps are forgotten after an hour, and are kept with slow requests only.</span>}
      {wanted && detail.with_steps && !told && <span class="quiet">Loading who else was there …</span>}
      {told && wanted && (found.length ? <Others found={found} /> : <span>No other request was in the engine's steps in that time.</span>)}
    </div>
  );
}

/** When the cause of the whole had its effect: in the queue, else after it. */
function spanOf({ explanation: { cause, parts, total_s } }: RequestDetail): [number, number] {
  const queued = parts.filter(({ stage }) => stage === "queue");
  const [first, last] = [queued[0], queued.at(-1)];
  return cause.code.startsWith("queue") && first && last ? [first.begin_s, last.end_s] : [0, total_s];
}

function Others({ found }: { found: Other[] }) {
  return (
    <ul>
      {found.slice(0, 8).map(({ turn, seconds, prompt }, index) => {
        const words = `${turn.prompt_tokens.toLocaleString("en")}-token prompt of ${turn.tenant}`;
        return (
          <li key={index}>
            {turn.request_id ? <a href={href(`requests/${requestOf(turn.request_id)}`)}>{words}</a> : words}
            : {prompt > 0 ? `${prompt.toLocaleString("en")} tokens of its prompt computed` : "its answer"} in steps of {duration(seconds)}
          </li>
        );
      })}
      {found.length > 8 && <li class="quiet">and {found.length - 8} more: see “Steps it shared”</li>}
    </ul>
  );
}
