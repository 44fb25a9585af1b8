// Turns of a column: what was asked, results of tools, answers with their figures.
import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Badge, CopyButton } from "../../components/basics";
import { Ribbon } from "../../components/ribbon";
import { param } from "../../lib/address";
import { count, duration, number } from "../../lib/format";
import { tokensPerSecond, type Draft } from "./answer";
import { newId, openCalls, type AnswerTurn, type Column, type ToolCall, type ToolTurn, type Turn, type UserTurn } from "./conversation";
import { CopyRequest } from "./code";
import { answer, columnOf, drafts, replaceFrom, running, setTurns } from "./state";
import { Text } from "./text";
import { Tokens } from "./tokens";
import { Why } from "./why";

/** Whether texts are shown as they are. */
export const plainText = param("text");

const FOLLOWED_PX = 240;
const WORDS: Record<string, string> = { length: "stopped at its greatest length", content_filter: "held back by moderation", stopped: "stopped by you", failed: "broke off" };

export function TurnView({ turn, column }: { turn: Turn; column: Column }) {
  if (turn.role === "user") return <Asked turn={turn} column={column} />;
  if (turn.role === "tool") return <Result turn={turn} />;
  return <Answered turn={turn} column={column} />;
}

function Asked({ turn, column }: { turn: UserTurn; column: Column }) {
  const editing = useSignal<string | null>(null);
  const busy = running.value.has(column.id);
  const save = (): void => {
    const text = editing.value;
    editing.value = null;
    if (text === null || busy) return;
    replaceFrom(column.id, turn.id, [{ id: newId(), role: "user", text }]);
  };
  return (
    <article class="pg-turn pg-user" aria-label="You">
      <header><strong>You</strong>
        {editing.value === null && <button type="button" class="copy" disabled={busy} onClick={() => (editing.value = turn.text)}>Edit</button>}
        <CopyButton text={turn.text} what="what you asked" />
      </header>
      {editing.value === null ? <div class="pg-plain">{turn.text}</div> : (
        <div class="pg-edit">
          <textarea aria-label="Edit what you asked" rows={3} value={editing.value} onInput={(event) => (editing.value = event.currentTarget.value)}
            ref={(element) => element?.focus()}
            onKeyDown={(event) => { if (event.key === "Escape") editing.value = null; }} />
          <div class="row">
            <button type="button" class="button small primary" onClick={save}>Ask this instead</button>
            <button type="button" class="button small" onClick={() => (editing.value = null)}>Cancel</button>
            <span class="quiet">Turns after it go.</span>
          </div>
        </div>
      )}
    </article>
  );
}

function Result({ turn }: { turn: ToolTurn }) {
  return (
    <article class="pg-turn pg-tool" aria-label={`Result of ${turn.name}`}>
      <header><strong>Result of <code>{turn.name}</code></strong><CopyButton text={turn.text} what="the result" /></header>
      <div class="pg-plain">{turn.text}</div>
    </article>
  );
}

function Answered({ turn, column }: { turn: AnswerTurn; column: Column }) {
  const draft = drafts.value.get(turn.id);
  const busy = running.value.has(column.id);
  const open = column.turns.at(-1)?.role === "user" ? [] : openCalls(column.turns);
  const again = (): void => replaceFrom(column.id, turn.id, []);
  return (
    <article class="pg-turn pg-answer" aria-label="Answer">
      <header><strong>{turn.figures?.model ?? "Answer"}</strong>
        <button type="button" class="copy" disabled={busy} onClick={again}>Again</button>
        {turn.text && <CopyButton text={turn.text} what="the answer" />}
        <CopyRequest column={column} turn={turn} />
      </header>
      <Content text={turn.text} reasoning={turn.reasoning} calls={turn.calls} />
      {turn.calls.filter((call) => open.includes(call)).map((call) => <GiveResult key={call.id} call={call} columnId={column.id} disabled={busy} />)}
      {draft && draft.tokens.length > 0 && <Tokens turn={turn} draft={draft} column={column} />}
      {turn.figures && <FiguresLine turn={turn} draft={draft} />}
      {turn.figures && <Why figures={turn.figures} draft={draft} />}
    </article>
  );
}

/** An answer that is being made. */
export function Making({ draft, model, onStop }: { draft: Draft; model: string; onStop: () => void }) {
  const speed = tokensPerSecond(draft);
  useEffect(() => {
    // Who reads at the end of the page stays there; who has scrolled up is left alone.
    const { scrollHeight } = document.documentElement;
    if (scrollHeight - window.scrollY - window.innerHeight < FOLLOWED_PX) window.scrollTo(0, scrollHeight);
  }, [draft]);
  return (
    <article class="pg-turn pg-answer" aria-label="Answer" aria-busy={draft.cells.length === 0}>
      <header><strong>{model}</strong>
        <button type="button" class="button small" onClick={onStop}>Stop</button>
        <span class="quiet">
          {draft.first_s === null ? "waiting for the first token …" : `TTFT ${duration(draft.first_s)}`}
          {speed !== null && ` · ${number(speed)} tokens/s`}
        </span>
      </header>
      <Content text={draft.text} reasoning={draft.reasoning} calls={draft.calls} />
      {draft.cells.length > 1 && <div class="pg-why"><Ribbon cells={draft.cells} /></div>}
    </article>
  );
}

function Content({ text, reasoning, calls }: { text: string; reasoning: string; calls: ToolCall[] }) {
  const plain = plainText.value === "plain";
  return (
    <>
      {reasoning && <details class="pg-reasoning"><summary>Reasoning, {count(reasoning.length, "character")}</summary><Text text={reasoning} plain={plain} /></details>}
      {text && <Text text={text} plain={plain} />}
      {calls.map((call) => (
        <div key={call.id} class="pg-call">
          <span>calls <code>{call.name}</code></span>
          <pre tabIndex={0}>{indented(call.arguments)}</pre>
        </div>
      ))}
    </>
  );
}

function indented(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // not whole yet, or not JSON at all
  }
}

function GiveResult({ call, columnId, disabled }: { call: ToolCall; columnId: string; disabled: boolean }) {
  const text = useSignal("");
  const give = (): void => {
    const column = columnOf(columnId);
    if (!column) return;
    setTurns(columnId, [...column.turns, { id: newId(), role: "tool", callId: call.id, name: call.name, text: text.value }]);
    if (!openCalls(columnOf(columnId)?.turns ?? []).length) void answer(columnId);
  };
  return (
    <div class="pg-edit">
      <textarea rows={2} aria-label={`Result of ${call.name}`} placeholder={`What ${call.name} gives, such as {"temperature": 21}`} value={text.value}
        onInput={(event) => (text.value = event.currentTarget.value)} />
      <button type="button" class="button small" disabled={disabled} onClick={give}>Give the result</button>
    </div>
  );
}

function FiguresLine({ turn, draft }: { turn: AnswerTurn; draft: Draft | undefined }) {
  const { figures } = turn;
  if (!figures) return null;
  const speed = draft ? tokensPerSecond(draft) : null;
  return (
    <p class="pg-figures quiet">
      <span>TTFT {duration(figures.ttft_s)}</span>
      <span>{duration(figures.total_s)}</span>
      {speed !== null && <span>{number(speed)} tokens/s</span>}
      {figures.outputTokens !== null && <span>{number(figures.inputTokens)} in ({number(figures.cachedTokens)} cached) + {number(figures.outputTokens)} out</span>}
      {WORDS[figures.finish] && <Badge level="warn">{WORDS[figures.finish]}</Badge>}
      {figures.warning && <span class="warn">{figures.warning}</span>}
    </p>
  );
}
