// The conversation that is open, its answers that are being made, and what starts, stops and keeps them.
import { signal } from "@preact/signals";
import { toast } from "../../components/toast";
import { address, formatAddress, go } from "../../lib/address";
import { ApiError, send } from "../../lib/api";
import { eventsOf } from "../../lib/events";
import { asApiError } from "../../lib/resource";
import { session } from "../../lib/session";
import { emptyDraft, withChunk, type Chunk, type Draft, type Token } from "./answer";
import { before, newId, withColumn, type AnswerTurn, type Column, type Conversation, type Turn } from "./conversation";
import { bodyOf, settingsProblem, type Json } from "./request";
import * as storage from "./storage";

/** An answer that is being made. */
export interface Running {
  draft: Draft;
  /** Ends it; what has come stays. */
  stop: () => void;
}

export const conversation = signal<Conversation | null>(null);
/** By column. */
export const running = signal<ReadonlyMap<string, Running>>(new Map());
export const failures = signal<ReadonlyMap<string, ApiError>>(new Map());
/** What was measured of answers, by turn; gone when the page is loaded anew. */
export const drafts = signal<ReadonlyMap<string, Draft>>(new Map());
/** Rises when the list of kept conversations changes. */
export const kept = signal(0);

const REDRAW_MS = 50;

function with_<V>(map: ReadonlyMap<string, V>, key: string, value: V | null): ReadonlyMap<string, V> {
  const next = new Map(map);
  if (value === null) next.delete(key);
  else next.set(key, value);
  return next;
}

export const who = (): string => session.value?.name ?? "open";

export function columnOf(id: string): Column | undefined {
  return conversation.value?.columns.find((column) => column.id === id);
}

/** Changes the conversation; keeps it in this browser once something was asked. */
export function change(next: Conversation): void {
  const changed = { ...next, at: Date.now() / 1000 };
  conversation.value = changed;
  if (!changed.columns.some((column) => column.turns.length)) return;
  if (!keepIt(changed)) toast("This conversation is too long to be kept in this browser. It stays until the page is left.", { kind: "bad" });
  kept.value += 1;
  if (address.value.page === "playground" && address.value.rest[0] !== changed.id) {
    go(formatAddress("playground", [changed.id], address.value.query), true);
  }
}

function keepIt(changed: Conversation): boolean {
  try {
    return storage.save(localStorage, who(), changed);
  } catch {
    return true; // storage is switched off: the reader knows
  }
}

export function changeColumn(id: string, how: (column: Column) => Column): void {
  if (conversation.value) change(withColumn(conversation.value, id, how));
}

export const setTurns = (id: string, turns: Turn[]): void => changeColumn(id, (column) => ({ ...column, turns }));

/** Puts other turns in the place of one and all after it, and asks for the answer. */
export function replaceFrom(columnId: string, turnId: string, turns: Turn[], opening?: { text: string; tokens: Token[] }): void {
  const old = columnOf(columnId)?.turns ?? [];
  setTurns(columnId, [...before(old, turnId), ...turns]);
  const undo = (): void => {
    if (!columnOf(columnId)) return;
    setTurns(columnId, old); // what is being made answers another turn now, and is dropped
    stop(columnId);
  };
  toast("Turns from here on were replaced.", { undo });
  void answer(columnId, opening);
}

/** Asks for the next answer of a column. `opening`: tokens that it begins with, with their text. */
export async function answer(columnId: string, opening: { text: string; tokens: Token[] } = { text: "", tokens: [] }): Promise<void> {
  const column = columnOf(columnId);
  if (!column || running.value.has(columnId)) return;
  failures.value = with_(failures.value, columnId, null);
  const problem = column.settings.model ? settingsProblem(column.settings) : "Choose a model.";
  if (problem) return fail(columnId, new ApiError(problem, 0, "settings", ""));

  const control = new AbortController();
  const after = column.turns.at(-1)?.id ?? "";
  const of: Asked = { columnId, after, begun: performance.now(), requestId: "", warning: "", draft: emptyDraft(opening.text, opening.tokens) };
  const end = (finish: string): void => {
    if (control.signal.aborted) return;
    control.abort();
    clearInterval(redraw);
    running.value = with_(running.value, columnId, null);
    finished(of, column.settings.model, finish);
  };
  const show = (): void => {
    running.value = with_(running.value, columnId, { draft: of.draft, stop: () => end("stopped") });
  };
  const redraw = setInterval(() => {
    if (running.value.get(columnId)?.draft !== of.draft) show();
  }, REDRAW_MS);
  show();
  try {
    await receive(of, bodyOf(column.settings, column.turns, opening.text), control.signal);
    end(of.draft.finish);
  } catch (failure) {
    if (control.signal.aborted) return;
    fail(columnId, asApiError(failure));
    end("failed");
  }
}

interface Asked {
  columnId: string;
  /** The turn that it answers. */
  after: string;
  begun: number;
  requestId: string;
  warning: string;
  draft: Draft;
}

async function receive(of: Asked, body: Json, signal: AbortSignal): Promise<void> {
  const seconds = (): number => (performance.now() - of.begun) / 1000;
  const response = await send("v1/chat/completions", { method: "POST", body, signal });
  of.requestId = response.headers.get("x-request-id") ?? "";
  of.warning = response.headers.get("x-kvarn-warning") ?? "";
  if (!body["stream"]) {
    of.draft = withChunk(of.draft, (await response.json()) as Chunk, seconds());
    return;
  }
  let whole = false;
  for await (const { data } of eventsOf(response)) {
    if (data === "[DONE]") { whole = true; continue; }
    const chunk = JSON.parse(data) as Chunk & { error?: { message: string; code?: string | null; type?: string } };
    if (chunk.error) throw new ApiError(chunk.error.message, 500, chunk.error.code ?? chunk.error.type ?? "", of.requestId);
    of.draft = withChunk(of.draft, chunk, seconds());
  }
  if (!whole && !signal.aborted) {
    throw new ApiError("The answer broke off. What has come of it is shown; ask again for the whole.", 0, "stream_ended", of.requestId);
  }
}

function fail(columnId: string, error: ApiError): void {
  failures.value = with_(failures.value, columnId, error);
}

/** Makes what has come a turn of the column, if anything has. */
function finished(of: Asked, model: string, finish: string): void {
  const { draft } = of;
  const empty = !draft.text && !draft.reasoning && !draft.calls.length;
  if (columnOf(of.columnId)?.turns.at(-1)?.id !== of.after || (empty && (finish === "stopped" || finish === "failed"))) return;
  const turn: AnswerTurn = {
    id: newId(), role: "assistant", text: draft.text, reasoning: draft.reasoning, calls: draft.calls,
    figures: {
      requestId: of.requestId, model, ttft_s: draft.first_s, total_s: (performance.now() - of.begun) / 1000,
      inputTokens: draft.inputTokens, cachedTokens: draft.cachedTokens, outputTokens: draft.outputTokens, finish, warning: of.warning,
    },
  };
  drafts.value = with_(drafts.value, turn.id, draft);
  changeColumn(of.columnId, (column) => ({ ...column, turns: [...column.turns, turn] }));
}

export function stop(columnId: string): void {
  running.value.get(columnId)?.stop();
}

export function stopAll(): void {
  for (const columnId of [...running.value.keys()]) stop(columnId);
}

/** Asks `text` in columns, or in all. */
export function ask(text: string, columnIds: string[]): void {
  for (const id of columnIds) {
    if (running.value.has(id)) continue;
    changeColumn(id, (column) => ({ ...column, turns: [...column.turns, { id: newId(), role: "user", text }] }));
    void answer(id);
  }
}

/** Opens a conversation, or a new one; what was being made stops. */
export function open(next: Conversation): void {
  stopAll();
  failures.value = new Map();
  conversation.value = next;
}
