// Where one writes what is asked: Enter sends, Shift with Enter begins a line.
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import type { Conversation } from "./conversation";
import { suggestionsFor } from "./models";
import { ask, running, stopAll } from "./state";

export function Composer({ conversation }: { conversation: Conversation }) {
  const { columns } = conversation;
  const fresh = columns.every((column) => column.turns.length === 0);
  const suggestions = suggestionsFor(columns[0]?.settings.model ?? "");
  const text = useSignal(fresh ? (suggestions[0] ?? "") : "");
  const to = useSignal("");
  const area = useRef<HTMLTextAreaElement>(null);
  const receivers = columns.filter((column) => !to.value || column.id === to.value).map(({ id }) => id);
  const busy = receivers.length > 0 && receivers.every((id) => running.value.has(id));

  useEffect(() => {
    // A new conversation has its first suggestion written and selected: Enter sends it, typing replaces it.
    if (fresh && window.matchMedia("(min-width: 721px)").matches) requestAnimationFrame(() => area.current?.select());
  }, [conversation.id]);

  const submit = (what: string): void => {
    if (!what.trim() || busy) return;
    ask(what, receivers);
    text.value = "";
    area.current?.focus();
  };
  return (
    <form class="pg-composer" onSubmit={(event) => { event.preventDefault(); submit(text.value); }}>
      {fresh && (
        <div class="row" role="group" aria-label="Suggestions">
          {suggestions.map((one) => <button key={one} type="button" class="button small" onClick={() => submit(one)}>{one}</button>)}
        </div>
      )}
      <textarea ref={area} rows={2} aria-label="What to ask" placeholder="Ask something …" value={text.value}
        onInput={(event) => (text.value = event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          submit(text.value);
        }} />
      <div class="row">
        <button type="submit" class="button primary" disabled={busy || !text.value.trim()}>{receivers.length > 1 ? `Send to ${receivers.length}` : "Send"}</button>
        {running.value.size > 0 && <button type="button" class="button" onClick={stopAll}>Stop{running.value.size > 1 ? " all" : ""}</button>}
        {columns.length > 1 && (
          <select aria-label="Send to" value={to.value} onChange={(event) => (to.value = event.currentTarget.value)}>
            <option value="">to all columns</option>
            {columns.map((column, index) => <option key={column.id} value={column.id}>to column {index + 1}, {column.settings.model}</option>)}
          </select>
        )}
        <span class="quiet pg-keys"><kbd>Enter</kbd> sends, <kbd>Shift</kbd> <kbd>Enter</kbd> begins a line</span>
      </div>
    </form>
  );
}
