// Settings of a column: system prompt, parameters with the model's defaults, tools, schema.
import { CheckField, SelectField, TextField } from "../../components/form";
import { NO_SETTINGS, type Column, type Settings } from "./conversation";
import type { Model } from "./models";
import { EFFORTS, NUMBERS, formatOf, numberProblem, rangeText, toolsOf, type NumberName, type Range } from "./request";
import { changeColumn } from "./state";

const TOOLS_EXAMPLE = `[{"name": "weather", "description": "Weather of a city",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]`;
const SCHEMA_EXAMPLE = `{"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}`;

/** Number of settings that are not left to the model. */
export function changed(settings: Settings): number {
  return (Object.keys(NO_SETTINGS) as (keyof Settings)[]).filter((name) => name !== "model" && settings[name] !== NO_SETTINGS[name]).length;
}

export function SettingsPanel({ column, model }: { column: Column; model: Model | undefined }) {
  const { settings } = column;
  const set = (changes: Partial<Settings>): void => changeColumn(column.id, (now) => ({ ...now, settings: { ...now.settings, ...changes } }));
  const defaults = model?.default_sampling_params ?? {};
  return (
    <section class="pg-settings" aria-label={`Settings of ${settings.model}`}>
      <TextField label="System prompt" rows={3} value={settings.system} placeholder="none" onChange={(system) => set({ system })} />
      <div class="pg-numbers">
        {(Object.entries(NUMBERS) as [NumberName, Range][]).map(([name, range]) => {
          const preset = defaults[name];
          const most = name === "max_tokens" ? model?.max_model_len : undefined;
          return (
            <TextField key={name} label={range.label} value={settings[name]} hint={`${rangeText(most ? { ...range, max: most } : range)}: ${range.what}`}
              placeholder={name === "seed" ? "drawn anew" : preset === undefined || preset === null ? "default" : `default ${preset}`}
              problem={numberProblem(settings[name], most ? { ...range, max: most } : range)} onChange={(text) => set({ [name]: text })} />
          );
        })}
        <SelectField label="Reasoning effort" value={settings.reasoning_effort} hint="where the model reasons" onChange={(reasoning_effort) => set({ reasoning_effort })}
          choices={[{ value: "", label: "default" }, ...EFFORTS.map((value) => ({ value }))]} />
        <SelectField label="Probabilities" value={settings.logprobs} hint="of each token, with alternatives" onChange={(logprobs) => set({ logprobs })}
          choices={[{ value: "", label: "none" }, { value: "0", label: "no alternatives" }, ...[3, 5, 10, 20].map((most) => ({ value: String(most), label: `${most} alternatives` }))]} />
      </div>
      <TextField label="Stop strings, one a line" rows={2} value={settings.stop} placeholder="none" onChange={(stop) => set({ stop })} />
      <JsonField label="Tools" value={settings.tools} problem={toolsOf(settings.tools).problem} example={TOOLS_EXAMPLE} onChange={(tools) => set({ tools })} />
      <JsonField label="Schema of the answer" value={settings.schema} problem={formatOf(settings.schema).problem} example={SCHEMA_EXAMPLE} onChange={(schema) => set({ schema })} />
      <div class="row">
        <CheckField label="Stream" checked={settings.stream} onChange={(stream) => set({ stream })} />
        <button type="button" class="button small" disabled={!changed(settings)} onClick={() => set({ ...NO_SETTINGS, model: settings.model })}>All to defaults</button>
      </div>
    </section>
  );
}

function JsonField({ label, value, problem, example, onChange }: {
  label: string;
  value: string;
  problem: string | undefined;
  example: string;
  onChange: (text: string) => void;
}) {
  return (
    <div class="pg-json">
      <TextField label={`${label} (JSON)`} rows={3} value={value} placeholder="none" problem={problem} onChange={onChange} />
      {!value && <button type="button" class="button small" onClick={() => onChange(example)}>Insert an example</button>}
    </div>
  );
}
