// What is asked: model, devices, traffic, targets, prices.
import { useSignal } from "@preact/signals";
import { RangeField, SelectField, TextField } from "../../components/form";
import { money } from "../../lib/format";
import { compactConfig, PASTED, type Question } from "./state";
import type { DeviceChoice, PlanChoices } from "./types";

interface FormProps {
  question: Question;
  choices: PlanChoices;
  onChange: (changes: Partial<Question>) => void;
}

const WEIGHTS = [["", "as they are, and 8 bits"], ["plain", "as the checkpoint has them"], ["int8", "int8"], ["fp8", "fp8"], ["int4", "int4"]] as const;
const CACHES = [["", "bfloat16, and 8 bits"], ["bfloat16", "bfloat16"], ["int8", "int8"], ["fp8", "fp8"]] as const;
const choicesOf = (pairs: readonly (readonly [string, string])[]) => pairs.map(([value, label]) => ({ value, label }));

export function Form(props: FormProps) {
  const { question: asked, choices, onChange } = props;
  const traffic = choices.traffic.find((each) => each.input_tokens === asked.input && each.output_tokens === asked.output);
  return (
    <form class="plan-form" aria-label="What is asked" onSubmit={(event) => event.preventDefault()}>
      <Model {...props} />
      <Devices {...props} />
      <fieldset>
        <legend>Traffic</legend>
        {choices.traffic.length > 0 && (
          <SelectField label="Lengths like" value={traffic?.name ?? ""}
            onChange={(name) => {
              const like = choices.traffic.find((each) => each.name === name);
              if (like) onChange({ input: like.input_tokens, output: like.output_tokens, cached: like.cached_share });
            }}
            choices={[{ value: "", label: "as below" }, ...choices.traffic.map((each) => ({ value: each.name, label: each.title }))]} />
        )}
        <RangeField label="Requests" unit="a second" min={0.1} max={1000} value={asked.rate} onChange={(rate) => onChange({ rate })} />
        <RangeField label="Prompt" unit="tokens" min={16} max={131072} value={asked.input} onChange={(input) => onChange({ input })} />
        <RangeField label="Answer" unit="tokens" min={1} max={16384} value={asked.output} onChange={(output) => onChange({ output })} />
        <RangeField label="Prompts found in the cache" unit="%" log={false} min={0} max={95} value={Math.round(asked.cached * 100)} onChange={(share) => onChange({ cached: Math.min(99, share) / 100 })} />
      </fieldset>
      <fieldset>
        <legend>Targets</legend>
        <RangeField label="Time to first token" unit="ms" min={50} max={10000} value={Math.round(asked.ttft * 1000)} onChange={(ms) => onChange({ ttft: ms / 1000 })} />
        <RangeField label="Time per output token" unit="ms" min={5} max={500} value={Math.round(asked.tpot * 10000) / 10} onChange={(ms) => onChange({ tpot: ms / 1000 })} />
        <SelectField label="Kept by, of the requests" value={String(asked.percentile)} onChange={(value) => onChange({ percentile: Number(value) })}
          choices={[["0.5", "half of the requests"], ["0.9", "90 %"], ["0.95", "95 %"], ["0.99", "99 %"]].map(([value = "", label = ""]) => ({ value, label }))} />
      </fieldset>
      <Prices {...props} />
      <details class="plan-more">
        <summary>How it is served</summary>
        <SelectField label="Weights" value={asked.weights} onChange={(weights) => onChange({ weights })} choices={choicesOf(WEIGHTS)} />
        <SelectField label="KV cache" value={asked.kv} onChange={(kv) => onChange({ kv })} choices={choicesOf(CACHES)} />
        <SelectField label="Devices that share a layer (TP)" value={asked.tp ? String(asked.tp) : ""} onChange={(tp) => onChange({ tp: Number(tp) })}
          choices={[{ value: "", label: "any" }, ...["1", "2", "4", "8"].map((value) => ({ value }))]} />
        <TextField label="Longest context, tokens" type="number" value={asked.context ? String(asked.context) : ""} placeholder="as the model and the traffic need"
          onChange={(text) => onChange({ context: Math.max(0, Math.floor(Number(text) || 0)) })} />
      </details>
    </form>
  );
}

function Model({ question: asked, choices, onChange }: FormProps) {
  const draft = useSignal(asked.config);
  const problem = useSignal<string | null>(null);
  const pasted = asked.of === PASTED;
  const named = [...choices.served, ...choices.presets, PASTED, ""].includes(asked.of);
  const read = (text: string): void => {
    draft.value = text;
    const found = text.trim() ? compactConfig(text) : { problem: null };
    problem.value = "problem" in found ? found.problem : null;
    onChange({ of: PASTED, config: "config" in found ? found.config : "" });
  };
  return (
    <fieldset>
      <legend>Model</legend>
      <div class="field">
        <label for="plan-model" class="unseen">Model</label>
        <select id="plan-model" value={asked.of} onChange={(event) => onChange({ of: event.currentTarget.value, config: draft.value && event.currentTarget.value === PASTED ? asked.config : "" })}>
          {!named && <option value={asked.of}>{asked.of}</option>}
          {choices.served.length > 0 && <optgroup label="Served here">{choices.served.map((name) => <option key={name} value={name}>{name}</option>)}</optgroup>}
          <optgroup label="Known">{choices.presets.map((name) => <option key={name} value={name}>{name}</option>)}</optgroup>
          <optgroup label="Another"><option value={PASTED}>a config.json …</option></optgroup>
        </select>
      </div>
      {pasted && <TextField label="config.json" rows={6} value={draft.value} placeholder={'{"architectures": ["Qwen3ForCausalLM"], …}'} onChange={read} problem={problem.value}
        hint="Paste the file of a checkpoint. It is read in a process whose time and memory are bounded." />}
    </fieldset>
  );
}

function Devices({ question: asked, choices, onChange }: FormProps) {
  const titleOf = (name: string): string => choices.devices.find((each) => each.name === name)?.title ?? name;
  const others = choices.devices.filter((each) => !asked.devices.includes(each.name));
  return (
    <fieldset>
      <legend>Devices</legend>
      <div class="row" role="list" aria-label="Devices that are compared">
        {asked.devices.map((name) => (
          <span role="listitem" key={name}>
            <button type="button" class="button small" disabled={asked.devices.length === 1} onClick={() => onChange({ devices: asked.devices.filter((each) => each !== name) })}>
              {titleOf(name)}{asked.devices.length > 1 && <><span aria-hidden="true"> ×</span><span class="unseen">, leave it out</span></>}
            </button>
          </span>
        ))}
      </div>
      <select aria-label="Compare with another device" value="" onChange={(event) => onChange({ devices: [...asked.devices, event.currentTarget.value] })}>
        <option value="">{asked.devices.length > 1 ? "and with …" : "compare with …"}</option>
        {others.map((each) => <option key={each.name} value={each.name}>{deviceLabel(each)}</option>)}
      </select>
    </fieldset>
  );
}

const deviceLabel = (of: DeviceChoice): string => `${of.title}, ${of.memory_gb} GB${of.price === null ? "" : `, ${money(of.price)}/h`}`;

function Prices({ question: asked, choices, onChange }: FormProps) {
  const priceOf = (name: string): DeviceChoice | undefined => choices.devices.find((each) => each.name === name);
  return (
    <fieldset>
      <legend>Prices</legend>
      {asked.devices.map((name) => {
        const listed = priceOf(name);
        return (
          <RangeField key={name} label={`${listed?.title ?? name}, an hour`} unit="$" min={0.1} max={20} value={asked.prices[name] ?? listed?.price ?? 1}
            hint={asked.prices[name] !== undefined ? "your price" : listed?.price ? `listed ${listed.price_date}` : "the table has no price: set one"}
            onChange={(price) => onChange({ prices: { ...asked.prices, [name]: price } })} />
        );
      })}
      <RangeField label="Services and egress on top" unit="%" log={false} min={0} max={100} value={Math.round(asked.services * 100)} onChange={(share) => onChange({ services: share / 100 })} />
      <TextField label="An API's price: a million input tokens, $" type="number" value={asked.apiInput ? String(asked.apiInput) : ""} placeholder="none"
        onChange={(text) => onChange({ apiInput: Math.max(0, Number(text) || 0) })} />
      <TextField label="and a million output tokens, $" type="number" value={asked.apiOutput ? String(asked.apiOutput) : ""} placeholder="none"
        onChange={(text) => onChange({ apiOutput: Math.max(0, Number(text) || 0) })} />
    </fieldset>
  );
}
