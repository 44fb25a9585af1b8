// Review: one sample a view, judged by keyboard.
import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { AddToSet } from "../../components/add-to-set";
import { Badge, Empty, Loaded, Time } from "../../components/basics";
import { SelectFilter, Filters, TextField } from "../../components/form";
import { href, model, param } from "../../lib/address";
import { call, withQuery } from "../../lib/api";
import { useShortcuts } from "../../lib/keys";
import { useResource } from "../../lib/resource";
import { change } from "../access/change";
import { turnsOf } from "./text";

type Verdict = "unreviewed" | "good" | "bad";

interface Sample {
  id: number;
  created_at: number;
  organization: string;
  request_id: string;
  model: string;
  state: Verdict;
  note: string | null;
  reviewed_by: string | null;
  reviewed_at: number | null;
}

interface Opened {
  sample: Sample;
  input: Record<string, unknown>;
  answer: string | null;
}

const PATH = "console/api/review";

export function ReviewTab({ done }: { done: () => void }) {
  const state = param("state").value || "unreviewed";
  const samples = useResource<{ data: Sample[]; has_more: boolean }>(withQuery(PATH, { state, model: model.value, limit: 50 }));
  return (
    <>
      <Filters><SelectFilter name="state" label="State" all="to review" choices={[{ value: "good", label: "judged good" }, { value: "bad", label: "judged bad" }]} /></Filters>
      <Loaded of={samples} what="The samples">
        {(list) => (list.data.length === 0
          ? <Empty what="No sample here. Prompts are sampled, sealed, in projects that keep them."><a class="button small" href={href("access", { tab: "projects" })}>Choose projects</a></Empty>
          : <Queue samples={list.data} reload={() => { samples.reload(); done(); }} />)}
      </Loaded>
    </>
  );
}

function Queue({ samples, reload }: { samples: Sample[]; reload: () => void }) {
  const chosen = param("sample");
  const at = Math.max(0, samples.findIndex((sample) => String(sample.id) === chosen.value));
  const sample = samples[at];
  const move = (step: number): void => {
    chosen.value = String(samples[Math.min(samples.length - 1, Math.max(0, at + step))]?.id ?? "");
  };
  useShortcuts([
    { keys: "j", what: "next sample", run: () => move(1) },
    { keys: "k", what: "sample before", run: () => move(-1) },
  ], [samples, at]);
  if (!sample) return null;
  return (
    <div class="stack">
      <p class="row">
        <button type="button" class="button small" disabled={at === 0} onClick={() => move(-1)}>Before (k)</button>
        <button type="button" class="button small" disabled={at === samples.length - 1} onClick={() => move(1)}>Next (j)</button>
        <span class="quiet">{at + 1} of {samples.length}</span>
      </p>
      <OneSample key={sample.id} id={sample.id} judged={() => { chosen.value = String(samples[at + 1]?.id ?? ""); reload(); }} />
    </div>
  );
}

function OneSample({ id, judged }: { id: number; judged: () => void }) {
  const opened = useResource<Opened>(`${PATH}/${id}`);
  const note = useSignal("");
  const kept = opened.data.value?.sample;
  useEffect(() => {
    note.value = kept?.note ?? "";
  }, [kept?.note]);
  const judge = async (state: Verdict): Promise<void> => {
    if (!kept) return;
    const set = (to: Verdict, text: string): Promise<unknown> => call(`${PATH}/${id}`, { method: "POST", body: { state: to, ...(text.trim() ? { note: text.trim() } : {}) } });
    const undo = (): void => void change("The verdict is as before.", () => set(kept.state, kept.note ?? "")).then(judged);
    if (await change(`Judged ${state}.`, () => set(state, note.value), undo)) judged();
  };
  useShortcuts([
    { keys: "1", what: "judge the sample good", run: () => void judge("good") },
    { keys: "2", what: "judge the sample bad", run: () => void judge("bad") },
  ], [kept]);
  return (
    <Loaded of={opened} what="The sample">
      {({ sample, input, answer }) => (
        <div class="stack">
          <p class="row">
            <Badge level={sample.state === "good" ? "good" : sample.state === "bad" ? "bad" : "quiet"}>{sample.state}</Badge>
            <span>{sample.model}, {sample.organization}, <Time at={sample.created_at} /></span>
            <a href={href("requests", { id: sample.request_id, range: "30d" })}>request</a>
            {sample.reviewed_by && <span class="quiet">by {sample.reviewed_by} <Time at={sample.reviewed_at} /></span>}
          </p>
          <div>
            {turnsOf(input).map((turn, index) => <div class="turn" key={index}><span class="quiet">{turn.role}</span><div>{turn.text}</div></div>)}
            <div class="turn answer"><span class="quiet">answer</span><div>{answer?.trim() ?? <span class="quiet">It was not kept.</span>}</div></div>
          </div>
          <TextField label="Note" value={note.value} onChange={(value) => (note.value = value)} rows={2} placeholder="What is wrong, or what was good" />
          <p class="row">
            <button type="button" class="button" onClick={() => void judge("good")}>Good (1)</button>
            <button type="button" class="button" onClick={() => void judge("bad")}>Bad (2)</button>
            <AddToSet path={`${PATH}/${id}/item`} answer={answer?.trim() ?? ""} />
            <span class="quiet">Opening a sample is written to the audit log.</span>
          </p>
        </div>
      )}
    </Loaded>
  );
}
