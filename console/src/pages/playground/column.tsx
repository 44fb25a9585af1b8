// A column: a model with its settings, its turns, and the answer that is being made.
import { useEffect, useRef } from "preact/hooks";
import { ErrorBox } from "../../components/basics";
import { toast } from "../../components/toast";
import { param } from "../../lib/address";
import { duration } from "../../lib/format";
import { withBack, withoutColumn, type Column } from "./conversation";
import { labelOf, named, type Model } from "./models";
import { SettingsPanel, changed } from "./settings";
import { answer, change, changeColumn, conversation, failures, running, stop } from "./state";
import { Making, TurnView } from "./turn";

/** Number of the column whose settings are open. */
const openSettings = param("settings");

export function ColumnView({ column, place, models, alone }: { column: Column; place: number; models: Model[]; alone: boolean }) {
  const { settings } = column;
  const model = named(models, settings.model);
  const now = running.value.get(column.id);
  const failure = failures.value.get(column.id);
  const open = openSettings.value === String(place);
  const set = changed(settings);
  const remove = (): void => {
    stop(column.id);
    openSettings.value = "";
    const old = conversation.value;
    if (!old) return;
    change(withoutColumn(old, column.id));
    toast(`Removed column ${place}.`, { undo: () => { if (conversation.value?.id === old.id) change({ ...conversation.value, columns: withBack(conversation.value.columns, old.columns, column.id) }); } });
  };
  return (
    <section class="pg-column" aria-label={`Column ${place}: ${settings.model}`}>
      <div class="pg-column-head">
        <select aria-label={`Model of column ${place}`} value={settings.model} disabled={now !== undefined}
          onChange={(event) => { const name = event.currentTarget.value; changeColumn(column.id, (one) => ({ ...one, settings: { ...one.settings, model: name } })); }}>
          {!model && <option value={settings.model}>{settings.model ? `${settings.model} (not served)` : "choose a model"}</option>}
          {models.map((one) => <option key={one.id} value={one.id}>{labelOf(one)}</option>)}
        </select>
        <button type="button" class="button small" aria-expanded={open} onClick={() => (openSettings.value = open ? "" : String(place))}>
          Settings{set > 0 && ` (${set})`}
        </button>
        {!alone && <button type="button" class="copy" onClick={remove} aria-label={`Remove column ${place}`}>Remove</button>}
      </div>
      {open && <SettingsPanel column={column} model={model} />}
      <Turns column={column} />
      {now && <Making draft={now.draft} model={settings.model} onStop={() => stop(column.id)} />}
      {failure && (
        <ErrorBox error={failure} what={`No answer${failure.code ? ` (${failure.code})` : ""}${failure.retryAfterS ? `; try again in ${duration(failure.retryAfterS)}` : ""}.`}
          {...(column.turns.at(-1)?.role === "user" ? { retry: () => void answer(column.id) } : {})} />
      )}
    </section>
  );
}

/** The turns, with the latest in sight while the reader has not scrolled up. */
function Turns({ column }: { column: Column }) {
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => {
    end.current?.scrollIntoView({ block: "nearest" });
  }, [column.turns.length]);
  return (
    <>
      {column.turns.map((turn) => <TurnView key={turn.id} turn={turn} column={column} />)}
      <div ref={end} class="pg-end" />
    </>
  );
}
