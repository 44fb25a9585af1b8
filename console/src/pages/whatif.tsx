// What if: the latest requests of a model simulated as they came, once as it is served and once with other settings.
import { Badge, CopyButton, Empty, ErrorBox, Facts, Loaded } from "../components/basics";
import { Chart } from "../components/chart";
import { CheckField, SelectField, TextField } from "../components/form";
import { PageHead } from "../frame/head";
import { RANGE_WORDS, address, model as chosenModel, setQuery, shownRange, type Range } from "../lib/address";
import { exampleChat } from "../lib/curl";
import { withQuery } from "../lib/api";
import { count, dateTime, percent } from "../lib/format";
import { useResource } from "../lib/resource";
import { useRun } from "./what-if/run";
import { FIGURES, changesText, curves, modelError, verdict } from "./what-if/text";
import type { Simulated, SimulatedModel, WhatIfChoices, Window } from "./what-if/types";
import "./plan.css";

const SHOWN: Range[] = ["15m", "1h", "6h", "24h"];
const CHANGES = ["replicas", "whole_prompts", "quantization", "kv_cache_dtype", "device", "token_budget", "max_num_seqs"] as const;

export default function WhatIfPage() {
  const choices = useResource<WhatIfChoices>("console/api/what-if");
  const { query } = address.value;
  const known = choices.data.value;
  const model = known?.models.find((each) => each.name === chosenModel.value) ?? known?.models[0];
  const range = shownRange(SHOWN);
  const until = query.get("until");
  const changed = changesText(query);
  const asked = Object.fromEntries(CHANGES.map((name) => [name, query.get(name)]));
  const run = useRun(until && model ? withQuery("console/api/what-if/run", { model: model.name, range, until, ...asked, whole_prompts: asked["whole_prompts"] ? "true" : null }) : null);
  const result = run.result.value;
  return (
    <>
      <PageHead title="What if" ranges={SHOWN}
        sentence={result ? verdict(result, changed) : { text: `What would the ${RANGE_WORDS[range].replace("last", "requests of the last")} have met with other settings? Choose some, and simulate.` }}>
        <CopyButton text={window.location.href} label="Copy link" what="the link to this simulation" />
      </PageHead>
      <Loaded of={choices} what="The models">
        {(loaded) => (model ? (
          <div class="plan-columns">
            <Form model={model} choices={loaded} />
            <div class="stack plan-answer">
              <State run={run} />
              {result ? <Answer of={result} changed={changed} window={run.window.value} /> : !run.error.value && run.share.value === null && (
                <Empty what={model.measured ? "Both distributions stand here, with what the simulation cannot know."
                  : `The engines of ${model.name} have not measured their steps yet: they do while they answer.`} command={model.measured ? undefined : exampleChat(model.name)} />
              )}
            </div>
          </div>
        ) : <Empty what="This server runs no model of its own: there is nothing to simulate." />)}
      </Loaded>
    </>
  );
}

function Form({ model, choices }: { model: SimulatedModel; choices: WhatIfChoices }) {
  const { query } = address.value;
  const set = (name: (typeof CHANGES)[number] | "model") => (value: string): void => setQuery({ [name]: value || null, until: null });
  const numberField = (name: "replicas" | "token_budget" | "max_num_seqs", label: string, now: number) => (
    <TextField label={label} type="number" value={query.get(name) ?? ""} placeholder={`as now: ${now}`} onChange={set(name)} />
  );
  const pick = (name: "quantization" | "kv_cache_dtype", label: string, now: string, values: string[]) => (
    <SelectField label={label} value={query.get(name) ?? ""} onChange={set(name)}
      choices={[{ value: "", label: `as now${now ? `: ${now}` : ""}` }, ...values.filter((value) => value !== now).map((value) => ({ value }))]} />
  );
  return (
    <form class="plan-form" aria-label="What would be otherwise" onSubmit={(event) => { event.preventDefault(); setQuery({ until: Math.floor(Date.now() / 1000) }, true); }}>
      <SelectField label="Model" value={model.name} onChange={set("model")} choices={choices.models.map((each) => ({ value: each.name }))} />
      {numberField("replicas", "Replicas", model.replicas)}
      <CheckField label="No chunked prefill" checked={query.has("whole_prompts")} onChange={(on) => set("whole_prompts")(on ? "1" : "")} hint="Each prompt is computed in one step." />
      {pick("quantization", "Weights", model.quantization, ["int8", "fp8", "int4"])}
      {pick("kv_cache_dtype", "KV cache", model.kv_cache_dtype, ["bfloat16", "int8", "fp8"])}
      <SelectField label="Device" value={query.get("device") ?? ""} onChange={set("device")}
        choices={[{ value: "", label: "as now, as the engines measured it" }, ...choices.devices.map((value) => ({ value }))]} />
      {numberField("token_budget", "Tokens in a step at most", model.token_budget)}
      {numberField("max_num_seqs", "Sequences at once at most", model.max_num_seqs)}
      <div class="row">
        <button type="submit" class="button primary">Simulate</button>
        {query.has("until") && <button type="button" class="button" onClick={() => setQuery({ until: null })}>Stop and clear</button>}
      </div>
    </form>
  );
}

function State({ run }: { run: ReturnType<typeof useRun> }) {
  const [error, share, seen] = [run.error.value, run.share.value, run.window.value];
  if (error) return <ErrorBox error={error} what="It was not simulated." />;
  if (share === null) return null;
  return (
    <p role="status" aria-busy="true">
      <progress class="plan-progress" value={share} max={1} aria-label="Simulated" /> {percent(share)}{seen && ` of ${count(seen.requests, "request")}, twice`}
    </p>
  );
}

function Answer({ of, changed, window }: { of: Simulated; changed: string; window: Window | null }) {
  const error = modelError(of);
  const line = (title: string, name: "ttft_s" | "tpot_s", target: number) => {
    const { seconds, shares: [measured = [], before = [], after = []] } = curves([of.measured[name], of.before[name], of.after[name]]);
    return (
      <Chart title={title} unit="share" over={{ name: "", unit: "s", log: true }} times={seconds} marks={[{ at: target, label: "target" }]}
        series={[{ name: "as now", values: before }, { name: "changed", values: after }, { name: "measured", values: measured }]} />
    );
  };
  return (
    <>
      {window && (
        <p class="quiet">
          {count(window.requests, "request")} from {dateTime(window.start)} to {dateTime(window.end)}{window.newest_only ? ", the newest of the range; older ones are left out" : ""}.
        </p>
      )}
      <div class="charts">
        {line("Requests within a time to first token", "ttft_s", of.ttft_target_s)}
        {line("Requests within a time per output token", "tpot_s", of.tpot_target_s)}
      </div>
      <div class="table-wrap">
        <table aria-label="Figures">
          <thead><tr><th scope="col">Figure</th><th scope="col" class="number">Measured</th><th scope="col" class="number">As now</th><th scope="col" class="number">Changed</th></tr></thead>
          <tbody>
            {FIGURES.map((figure) => (
              <tr key={figure.name}><td>{figure.name}</td>{[of.measured, of.before, of.after].map((side, index) => <td key={index} class="number">{figure.text(side)}</td>)}</tr>
            ))}
          </tbody>
        </table>
      </div>
      <section class="section">
        <h2>How much it may be off</h2>
        <p>{error === null ? <Badge>nothing to compare with</Badge> : <>The simulation of how it was is {percent(error)} off what was measured, at the worst of TTFT p95, TPOT p50 and TPOT p95.</>}</p>
        <ul class="plan-notes">{of.notes.map((note) => <li key={note}>{note}</li>)}</ul>
      </section>
      <Facts facts={[["Changed", changed || "nothing"], ["Settings", of.settings.length ? of.settings.map((each) => <div key={each}><code>{each}</code></div>) : "none"],
        ["Event logs", <code>{of.logs.map((log) => log.slice(0, 12)).join(" and ")}</code>]]} />
    </>
  );
}
