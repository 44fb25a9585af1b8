// Form fields: a label that belongs to its control, a hint, and what is wrong.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { param } from "../lib/address";

interface FieldProps {
  label: string;
  hint?: ComponentChildren;
  problem?: string | null | undefined;
}

function Frame({ id, label, hint, problem, children }: FieldProps & { id: string; children: ComponentChildren }) {
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children}
      {hint && <span class="hint" id={`${id}-hint`}>{hint}</span>}
      {problem && <span class="problem" id={`${id}-problem`} role="alert">{problem}</span>}
    </div>
  );
}

const described = (id: string, { hint, problem }: FieldProps): Record<string, string | boolean | undefined> => ({
  "aria-describedby": [hint && `${id}-hint`, problem && `${id}-problem`].filter(Boolean).join(" ") || undefined,
  "aria-invalid": problem ? true : undefined,
});

export function TextField({ value, onChange, type = "text", rows, required, placeholder, autoFocus, autocomplete = "off", ...field }: FieldProps & {
  value: string;
  onChange: (value: string) => void;
  type?: "text" | "password" | "number" | "date" | "email" | "url";
  /** More than one makes it a text area. */
  rows?: number;
  required?: boolean;
  placeholder?: string;
  autoFocus?: boolean;
  autocomplete?: string;
}) {
  const id = useId();
  const control = useRef<HTMLInputElement & HTMLTextAreaElement>(null);
  useEffect(() => {
    if (autoFocus) control.current?.focus();
  }, []);
  const shared = {
    id, ref: control, value, required, placeholder, ...described(id, field),
    onInput: (event: { currentTarget: { value: string } }) => onChange(event.currentTarget.value),
  };
  return (
    <Frame id={id} {...field}>
      {rows && rows > 1 ? <textarea {...shared} rows={rows} /> : <input {...shared} {...({ type, autocomplete } as object)} />}
    </Frame>
  );
}

/** Position 0 to 1 of a value on a slider, and back; `log`: equal ways are equal factors. */
export const toPosition = (value: number, min: number, max: number, log: boolean): number =>
  log ? Math.log(value / min) / Math.log(max / min) : (value - min) / (max - min);
export const fromPosition = (at: number, min: number, max: number, log: boolean): number =>
  log ? min * (max / min) ** at : min + at * (max - min);

const STEPS = 200;

/** A number by a slider and by its digits. The slider is logarithmic unless `log` is false; what is typed may lie beyond its ends. */
export function RangeField({ value, onChange, min, max, unit, log = true, digits = 2, ...field }: FieldProps & {
  value: number;
  onChange: (value: number) => void;
  min: number;
  max: number;
  /** After the number: `requests/s`. */
  unit: string;
  log?: boolean;
  /** Significant digits of what the slider gives. */
  digits?: number;
}) {
  const id = useId();
  const at = toPosition(Math.min(max, Math.max(min, value)), min, max, log);
  const slide = (event: { currentTarget: { value: string } }): void =>
    onChange(Number(fromPosition(Number(event.currentTarget.value) / STEPS, min, max, log).toPrecision(digits)));
  const type = (event: { currentTarget: { value: string } }): void => {
    const typed = Number(event.currentTarget.value);
    if (event.currentTarget.value.trim() && (log ? typed > 0 : typed >= 0)) onChange(typed);
  };
  return (
    <Frame id={id} {...field}>
      <div class="slide">
        <input type="range" min={0} max={STEPS} step={1} value={Math.round(at * STEPS)} aria-label={`${field.label}, slider`} aria-valuetext={`${value} ${unit}`} onInput={slide} />
        <input type="number" id={id} value={value} min={0} step="any" {...described(id, field)} onChange={type} />
        <span class="quiet">{unit}</span>
      </div>
    </Frame>
  );
}

interface Choice {
  value: string;
  label?: string;
}

export function SelectField({ value, onChange, choices, ...field }: FieldProps & {
  value: string;
  onChange: (value: string) => void;
  choices: Choice[];
}) {
  const id = useId();
  return (
    <Frame id={id} {...field}>
      <select id={id} value={value} {...described(id, field)} onChange={(event) => onChange(event.currentTarget.value)}>
        {choices.map((choice) => <option key={choice.value} value={choice.value}>{choice.label ?? choice.value}</option>)}
      </select>
    </Frame>
  );
}

export function CheckField({ label, checked, onChange, hint }: {
  label: string;
  checked: boolean;
  onChange: (checked: boolean) => void;
  hint?: string;
}) {
  return (
    <div class="field">
      <label class="check">
        <input type="checkbox" checked={checked} onChange={(event) => onChange(event.currentTarget.checked)} />
        {label}
      </label>
      {hint && <span class="hint">{hint}</span>}
    </div>
  );
}

/** A filter that is typed; the address changes 300 ms after the last key, or at Enter. */
export function TextFilter({ name, label }: { name: string; label: string }) {
  const filter = param(name);
  const typed = useSignal(filter.value);
  const timer = useRef(0);
  useEffect(() => {
    typed.value = filter.value;
    return () => window.clearTimeout(timer.current);
  }, [filter.value]);
  const set = (value: string, delay: number): void => {
    typed.value = value;
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => (filter.value = value.trim()), delay);
  };
  return (
    <input
      type="search"
      aria-label={label}
      placeholder={label}
      value={typed.value}
      onInput={(event) => set(event.currentTarget.value, 300)}
      onKeyDown={(event) => { if (event.key === "Enter") set(event.currentTarget.value, 0); }}
    />
  );
}

/** A filter with few values. The first choice, all, has the empty value. */
export function SelectFilter({ name, label, choices, all = `any ${label.toLowerCase()}` }: {
  name: string;
  label: string;
  choices: Choice[];
  all?: string;
}) {
  const filter = param(name);
  return (
    <select aria-label={label} value={filter.value} onChange={(event) => (filter.value = event.currentTarget.value)}>
      <option value="">{all}</option>
      {choices.map((choice) => <option key={choice.value} value={choice.value}>{choice.label ?? choice.value}</option>)}
    </select>
  );
}

export function Filters({ children }: { children: ComponentChildren }) {
  return <div class="filters" role="search" aria-label="Filters of this page">{children}</div>;
}
