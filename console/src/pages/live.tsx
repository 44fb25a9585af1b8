// Live: what a replica does now, step by step, and its KV blocks.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ErrorBox } from "../components/basics";
import { PageHead } from "../frame/head";
import { address, formatAddress, live, model, param, withChanges } from "../lib/address";
import { withQuery } from "../lib/api";
import { exampleChat } from "../lib/curl";
import { useStream } from "../lib/events";
import { duration } from "../lib/format";
import { KvMap } from "./live/kv-map";
import { AsTables, Queue, Replicas } from "./live/lists";
import { LiveState, NOT_YET, type Frame } from "./live/state";
import { Steps } from "./live/steps";
import { liveSentence } from "./live/words";
import "./live.css";

/** Seconds without news of the engine after which what is shown is late: it moves each second. */
const LATE_S = 4;

export default function LivePage() {
  const state = useRef(new LiveState()).current;
  const changed = useSignal(0);
  /** When the engine's time last moved, and the time now, in this browser's seconds. */
  const movedAt = useSignal(0);
  const time = useSignal(Date.now() / 1000);
  const replica = param("replica").value;
  const path = withQuery("console/api/live", { model: model.value, replica });
  const stream = useStream(live.value ? path : null, (event, data) => {
    const frame = data as Frame;
    if (frame.at_s !== state.at || !movedAt.value) movedAt.value = time.value = Date.now() / 1000;
    state.take(event, frame);
    changed.value += 1;
  });
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) time.value = Date.now() / 1000; }, 1000);
    return () => clearInterval(timer);
  }, []);

  void changed.value;
  const age = movedAt.value ? time.value - movedAt.value : 0;
  const error = stream.error.value;
  const refused = error !== null && stream.state.value === "off" && live.value;
  const late = state.at > 0 && age > LATE_S;
  const asking = state.problem === NOT_YET;
  const why = !live.value ? "The stream is paused." : error ? error.message : "The engine is late.";
  return (
    <>
      <PageHead title="Live" streams sentence={refused ? { text: "This replica cannot be watched.", level: "warn" } : asking ? undefined : liveSentence(state, time.value - age)} />
      {refused && <ErrorBox error={error} what="The stream ended." />}
      {refused && replica && <p><a href={formatAddress(address.value.page, [], withChanges(address.value.query, { replica: null, block: null }))}>Watch the first replica that is ready</a></p>}
      {!refused && late && <p class="late" role="status">{why} Shown: the replica of {duration(Math.round(age))} ago.</p>}
      {!state.replica && !refused && (error ? <ErrorBox error={error} what="The stream could not be opened; it is tried again." /> : <p class="quiet" aria-busy={live.value}>{live.value ? "Connecting …" : "Paused."}</p>)}
      {state.replica && asking && !refused && <p class="quiet" aria-busy={live.value}>Asking the engine …</p>}
      {state.replica && (
        <div class={`stack ${late || refused || state.problem ? "stale" : ""}`}>
          {state.at > 0 && <div class="live-columns">
            <section class="section">
              <h2>Steps of {state.replica}</h2>
              <Steps state={state} changed={changed} curl={exampleChat(state.model || model.value)} />
              <AsTables state={state} changed={changed} />
            </section>
            <section class="section">
              <h2>Queue</h2>
              <Queue queue={state.queue} />
            </section>
          </div>}
          {state.at > 0 && <section class="section">
            <h2>KV blocks</h2>
            <KvMap state={state} changed={changed} />
          </section>}
          <section class="section">
            <h2>Replicas of {state.model}</h2>
            <Replicas state={state} changed={changed} />
          </section>
        </div>
      )}
    </>
  );
}
