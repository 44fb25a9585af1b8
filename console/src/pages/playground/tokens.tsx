// Tokens of an answer, shaded by how sure the model was; the chosen one shows what else could have stood there.
import { useSignal } from "@preact/signals";
import { percent } from "../../lib/format";
import { probability, surprise, textOf, type Alternative, type Draft, type Token } from "./answer";
import type { AnswerTurn, Column } from "./conversation";
import { replaceFrom, running } from "./state";

const MOST_SHOWN = 2000;
const SHADES = ["90 % and more", "50 % and more", "10 % and more", "under 10 %"];

export function Tokens({ turn, draft, column }: { turn: AnswerTurn; draft: Draft; column: Column }) {
  const chosen = useSignal<number | null>(null);
  const shown = draft.tokens.slice(0, MOST_SHOWN);
  const token = chosen.value === null ? undefined : shown[chosen.value];
  const indexOf = (event: Event): number | null => {
    const index = event.target instanceof HTMLElement ? event.target.dataset["index"] : undefined;
    return index === undefined ? null : Number(index);
  };
  const onKey = (event: KeyboardEvent): void => {
    const at = chosen.value ?? -1;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    chosen.value = Math.min(shown.length - 1, Math.max(0, to));
  };
  return (
    <details class="pg-tokens">
      <summary>Tokens and their probabilities</summary>
      <div class="pg-token-text" role="slider" tabIndex={0} aria-label="Tokens: the arrow keys go through them" aria-valuemin={1} aria-valuemax={shown.length}
        aria-valuenow={(chosen.value ?? 0) + 1} aria-valuetext={token ? `${JSON.stringify(token.text)}, ${percent(probability(token))}` : "none chosen"}
        onKeyDown={onKey}
        onClick={(event) => { const at = indexOf(event); if (at !== null) chosen.value = at; }}
        onMouseOver={(event) => { const at = indexOf(event); if (at !== null) chosen.value = at; }}>
        {shown.map((one, index) => (
          <span key={index} data-index={index} class={`pg-token pg-token-${surprise(one)} ${index === chosen.value ? "chosen" : ""}`}>{one.text}</span>
        ))}
      </div>
      <p class="quiet pg-shades">{SHADES.map((name, shade) => <span key={name}><span class={`pg-token pg-token-${shade}`}>abc</span> {name}</span>)}</p>
      {draft.tokens.length > MOST_SHOWN && <p class="quiet">The first {MOST_SHOWN} tokens are shown.</p>}
      {token && chosen.value !== null && <Alternatives at={chosen.value} token={token} turn={turn} draft={draft} column={column} />}
    </details>
  );
}

function Alternatives({ at, token, turn, draft, column }: { at: number; token: Token; turn: AnswerTurn; draft: Draft; column: Column }) {
  const others = token.top.filter((one) => one.text !== token.text);
  const why = turn.reasoning || turn.calls.length ? "An answer with reasoning or calls cannot be gone on from in the middle." : null;
  const goOn = (instead: Alternative): void => {
    const tokens: Token[] = [...draft.tokens.slice(0, at), { ...instead, top: token.top }];
    const text = textOf(tokens);
    if (text === null) return;
    replaceFrom(column.id, turn.id, [], { text, tokens });
  };
  return (
    <div class="pg-alternatives">
      <p>Token {at + 1}: <code>{JSON.stringify(token.text)}</code>, {percent(probability(token))}. {others.length > 0 ? "Instead:" : "No alternatives were asked for."}</p>
      <ul>
        {others.map((one) => {
          const broken = textOf([...draft.tokens.slice(0, at), one]) === null;
          return (
            <li key={one.text}>
              <button type="button" class="button small" disabled={why !== null || broken || running.value.has(column.id)} onClick={() => goOn(one)}
                title={broken ? "Part of a character: nothing can go on from here" : "Go on from here with this token"}>
                <code>{JSON.stringify(one.text)}</code>
              </button>
              <span class="pg-bar" aria-hidden="true"><span style={{ width: `${100 * probability(one)}%` }} /></span>
              <span class="quiet">{percent(probability(one))}</span>
            </li>
          );
        })}
      </ul>
      {why && <p class="quiet">{why}</p>}
    </div>
  );
}
