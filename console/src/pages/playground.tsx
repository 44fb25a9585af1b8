// Playground: models side by side, with their settings, tokens, and why an answer took as long as it did.
import { useEffect } from "preact/hooks";
import { signal } from "@preact/signals";
import { Empty, Loaded } from "../components/basics";
import { PageHead } from "../frame/head";
import { address, href, model as modelParam, param } from "../lib/address";
import { root } from "../lib/api";
import { count } from "../lib/format";
import { useResource } from "../lib/resource";
import { MAX_COLUMNS, newConversation, titleOf, withCopy } from "./playground/conversation";
import { ColumnView } from "./playground/column";
import { Composer } from "./playground/composer";
import { History } from "./playground/history";
import { firstModel, generating, named, type Model } from "./playground/models";
import { change, changeColumn, conversation, open, running, stopAll, who } from "./playground/state";
import * as storage from "./playground/storage";
import { plainText } from "./playground/turn";
import "./playground.css";

const history = param("history");
/** Whether the address names a conversation that this browser does not have. */
const missing = signal(false);

export default function PlaygroundPage() {
  const models = useResource<{ data: Model[] }>("v1/models");
  useEffect(() => stopAll, []);
  return (
    <>
      <PageHead title="Playground" sentence={models.data.value && { text: sentence(generating(models.data.value.data)) }}>
        <a class="button small" href={href("playground")}>New</a>
        <button type="button" class="button small" aria-expanded={history.value === "1"} onClick={() => (history.value = history.value === "1" ? "" : "1")}>History</button>
        <button type="button" class="button small" aria-pressed={plainText.value === "plain"} onClick={() => (plainText.value = plainText.value === "plain" ? "" : "plain")}>Plain text</button>
      </PageHead>
      {history.value === "1" && <History />}
      <Loaded of={models} what="The models">{({ data }) => <Content models={generating(data)} />}</Loaded>
    </>
  );
}

function sentence(models: Model[]): string {
  const now = conversation.value;
  const asked = now?.columns.some((column) => column.turns.length);
  if (running.value.size > 0) return `${count(running.value.size, "answer")} on the way.`;
  if (now && asked) return titleOf(now);
  const ready = models.filter((model) => model.ready).length;
  return ready === 0 ? "No model is ready to answer yet." : `${count(ready, "model is", "models are")} ready. Press Enter to ask the first question.`;
}

/** Opens the conversation that the address names; a new one where it names none, or one that this browser does not have. */
function follow(id: string, models: Model[]): void {
  if (id && conversation.peek()?.id === id) return;
  const known = id ? stored(id) : null;
  missing.value = id !== "" && !known;
  open(known ?? newConversation(firstModel(models, modelParam.value)));
}

/** Gives the model that the top bar names to a conversation of one column. */
function followModel(models: Model[]): void {
  const [wanted, now] = [named(models, modelParam.value), conversation.peek()];
  const [column, other] = now?.columns ?? [];
  if (!wanted || !column || other || running.peek().has(column.id) || named(models, column.settings.model) === wanted) return;
  changeColumn(column.id, (one) => ({ ...one, settings: { ...one.settings, model: wanted.id } }));
}

function stored(id: string): ReturnType<typeof storage.load> {
  try {
    return storage.load(localStorage, who(), id);
  } catch {
    return null; // storage is switched off
  }
}

function Content({ models }: { models: Model[] }) {
  const id = address.value.rest[0] ?? "";
  useEffect(() => follow(id, models), [id]);
  const chosen = modelParam.value;
  useEffect(() => { if (chosen) followModel(models); }, [chosen]);
  const now = conversation.value;
  if (models.length === 0) return <Empty what="No model that generates text is served. Start the server with one:" command="kvarn serve --model chat=PATH" />;
  if (!now) return null;
  const last = now.columns.at(-1)?.settings.model ?? "";
  return (
    <div class={`pg ${now.columns.length === 1 ? "pg-one" : ""}`}>
      {missing.value && <p class="late" role="status">This conversation is not kept in this browser: it was deleted, made way for newer ones, or belongs to another. Here is a new one.</p>}
      <div class={`pg-columns pg-columns-${now.columns.length}`}>
        {now.columns.map((column, index) => <ColumnView key={column.id} column={column} place={index + 1} models={models} alone={now.columns.length === 1} />)}
      </div>
      <div class="row">
        <button type="button" class="button small" disabled={now.columns.length >= MAX_COLUMNS}
          onClick={() => change(withCopy(now, (models[(models.findIndex((one) => one.id === last) + 1) % models.length] ?? models[0])?.id ?? last))}>
          Add a column
        </button>
        <span class="quiet">The API is at <code>{root}v1</code></span>
      </div>
      <Composer key={now.id} conversation={now} />
    </div>
  );
}
