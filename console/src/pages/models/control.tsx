// Number of replicas of a model: scaled, put to sleep, woken.
import { useSignal } from "@preact/signals";
import { ask } from "../../components/dialog";
import { TextField } from "../../components/form";
import { call, withQuery } from "../../lib/api";
import { count } from "../../lib/format";
import { ORGANIZATION, change } from "../access/change";
import { replicasOf } from "./text";
import type { Deployment, ModelDetail } from "./types";

const scale = (model: string, replicas: number | null): Promise<unknown> =>
  call(`${ORGANIZATION}/deployments/scale`, { method: "POST", body: { model, replicas } });

export function Control({ model, deployment, reload }: { model: ModelDetail; deployment: Deployment; reload: () => void }) {
  const typed = useSignal<string | null>(null);
  const wanted = replicasOf(typed.value ?? String(deployment.replicas));
  const set = async (replicas: number): Promise<void> => {
    const before = deployment.replicas;
    const undo = (): void => void change(`${model.name} has ${count(before, "replica")} again.`, () => scale(model.name, before)).then(reload);
    if (await change(`${model.name} gets ${count(replicas, "replica")}.`, () => scale(model.name, replicas), undo)) {
      typed.value = null;
      reload();
    }
  };
  const onScale = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (Number.isNaN(wanted) || wanted === deployment.replicas) return;
    if (wanted === 0 && !(await mayEnd(model))) return;
    await set(wanted);
  };
  const sleep = async (): Promise<void> => {
    if (!(await mayEnd(model))) return;
    const undo = (): void => void wake();
    if (await change(`${model.name} is put to sleep.`, () => call(withQuery("sleep", { model: model.name }), { method: "POST" }), undo)) reload();
  };
  const wake = async (): Promise<void> => {
    if (await change(`${model.name} is woken.`, () => call(withQuery("wake_up", { model: model.name }), { method: "POST" }))) reload();
  };
  return (
    <form class="models-actions" aria-label="Number of replicas" onSubmit={(event) => void onScale(event)}>
      <TextField label="Replicas" type="number" value={typed.value ?? String(deployment.replicas)} onChange={(value) => (typed.value = value)}
        problem={Number.isNaN(wanted) ? "0 to 256" : null} />
      <button type="submit" class="button" disabled={Number.isNaN(wanted) || wanted === deployment.replicas}>Scale</button>
      {deployment.replicas > 0
        ? <button type="button" class="button" onClick={() => void sleep()}>Sleep</button>
        : <button type="button" class="button primary" onClick={() => void wake()}>Wake</button>}
      {model.autoscaled && <span class="quiet">Your number replaces the autoscaler's; Wake hands control back to it.</span>}
    </form>
  );
}

function mayEnd(model: ModelDetail): Promise<boolean> {
  const running = model.replicas.reduce((sum, each) => sum + each.running + each.waiting, 0);
  const now = running ? `${count(running, "sequence")} under way ${running === 1 ? "is" : "are"} finished first.` : "Nothing runs on it now.";
  return ask({
    title: `Put ${model.name} to sleep?`, action: "Sleep", danger: true,
    text: `${now} All its replicas end then, and requests for it are not answered until it is woken.`,
  });
}
