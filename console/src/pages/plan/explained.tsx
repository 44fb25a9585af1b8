// Numbers of a plan: each opens to its formula, what it takes for granted, its error and its source.
import type { ComponentChildren } from "preact";
import { bySize, errorText, partName, sumOf, valueText } from "./text";
import type { Part, Quantity } from "./types";

/** A number that opens. */
export function Explained({ name, of, note }: { name: string; of: Quantity; note?: ComponentChildren }) {
  const error = errorText(of);
  return (
    <details class="explained">
      <summary>
        <span class="name">{name}</span>
        <span class="value">
          <b>{valueText(of)}</b> {error && <span class="quiet">{error}</span>}
        </span>
      </summary>
      <dl class="facts">
        {of.formula && <><dt>Formula</dt><dd>{of.formula}</dd></>}
        <dt>Assumes</dt><dd>{of.assumption || "nothing but what was asked"}</dd>
        <dt>Error</dt><dd>{error || "not known"}{of.error ? `: ${valueText({ ...of, value: of.value * (1 - of.error) })} to ${valueText({ ...of, value: of.value * (1 + of.error) })}` : ""}</dd>
        {of.source && <><dt>Source</dt><dd>{of.source}</dd></>}
        {note && <><dt>Note</dt><dd>{note}</dd></>}
      </dl>
    </details>
  );
}

export function ExplainedList({ label, items }: { label: string; items: [string, Quantity | null | undefined][] }) {
  return (
    <section class="section" aria-label={label}>
      <h3>{label}</h3>
      {items.map(([name, quantity]) => quantity && <Explained key={name} name={name} of={quantity} />)}
    </section>
  );
}

/** Number of the last look that parts may have; the smallest ones share it. */
const MOST_LOOKS = 7;

/** Parts of a sum as one bar, and each with its number below. */
export function PartsBar({ label, parts, total }: { label: string; parts: Part[]; total?: string }) {
  const sum = sumOf(parts);
  const places = bySize(parts);
  const look = (index: number): string => `part-${Math.min(MOST_LOOKS, places[index] ?? MOST_LOOKS)}`;
  const share = (part: Part): number => (sum > 0 ? Math.max(0, part.quantity.value / sum) : 0);
  return (
    <section class="section" aria-label={label}>
      <h3>{label}{total && <span class="quiet"> {total}</span>}</h3>
      <div class="parts-bar" aria-hidden="true">
        {parts.map((part, index) => share(part) > 0 && <span key={part.name} class={look(index)} style={{ flexGrow: share(part) }} />)}
      </div>
      {parts.map((part, index) => (
        <div class="part-line" key={part.name}>
          <span class={`swatch ${look(index)}`} aria-hidden="true" />
          <Explained name={partName(part.name)} of={part.quantity} />
        </div>
      ))}
    </section>
  );
}
