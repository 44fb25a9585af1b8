// Plan: how many of which devices a model needs for a traffic and its targets, and what that costs. Everything asked is in the address.
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { CopyButton, Empty, Loaded } from "../components/basics";
import { toast } from "../components/toast";
import { PageHead } from "../frame/head";
import { address } from "../lib/address";
import { send } from "../lib/api";
import { download } from "../lib/download";
import { asApiError, useResource } from "../lib/resource";
import { Answer } from "./plan/answer";
import { Form } from "./plan/form";
import { changeAddress, currentQuestion, requestOf, type Question } from "./plan/state";
import { planSentence } from "./plan/text";
import type { Plan, PlanChoices } from "./plan/types";
import "./plan.css";

/** Milliseconds after the last change until the plan is asked for. */
const REST_MS = 250;

export default function PlanPage() {
  const choices = useResource<PlanChoices>("console/api/plan");
  const shown = useSignal<Question>(currentQuestion());
  const timer = useRef(0);
  const query = address.value.query.toString();
  useEffect(() => {
    window.clearTimeout(timer.current);
    shown.value = currentQuestion(); // back, or a link
  }, [query]);
  useEffect(() => () => window.clearTimeout(timer.current), []);
  const change = (changes: Partial<Question>): void => {
    shown.value = { ...shown.value, ...changes };
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => changeAddress(shown.value), REST_MS);
  };
  const known = choices.data.value;
  const asked = withDefaults(currentQuestion(), known);
  const body = known ? requestOf(asked) : null;
  const plan = useResource<Plan>(body ? "console/api/plan" : null, body ?? undefined);
  const told = plan.data.value;
  const titleOf = (device: string): string => known?.devices.find((each) => each.name === device)?.title.replace(/^NVIDIA /, "") ?? device;
  return (
    <>
      <PageHead title="Plan" sentence={told && !plan.error.value ? planSentence(told, asked, titleOf) : body ? undefined : known && { text: "Choose a model: one that is served here, one that is known, or any config.json." }}>
        <CopyButton text={window.location.href} label="Copy link" what="the link to this plan" />
        {told && <button type="button" class="button small" onClick={() => download(`plan-${fileName(told)}.json`, JSON.stringify(told, null, 2), "application/json")}>JSON</button>}
        {told && body && <button type="button" class="button small" onClick={() => void savePage(body, told)}>HTML</button>}
      </PageHead>
      <Loaded of={choices} what="The choices">
        {(loaded) => (
          <div class="plan-columns">
            <Form question={withDefaults(shown.value, loaded)} choices={loaded} onChange={change} />
            <div>
              {body ? <Loaded of={plan} what="The plan">{(answer) => <Answer plan={answer} asked={asked} titleOf={titleOf} />}</Loaded>
                : <Empty what="The answer stands here: memory by part, replicas, latency, cost." />}
            </div>
          </div>
        )}
      </Loaded>
    </>
  );
}

/** The question with a model: the first that is served, else the first that is known. */
function withDefaults(question: Question, choices: PlanChoices | undefined): Question {
  return question.of || !choices ? question : { ...question, of: choices.presets.find((name) => /8b/i.test(name)) ?? choices.presets[0] ?? choices.served[0] ?? "" };
}

const fileName = (plan: Plan): string => plan.model.replace(/[^\w.-]+/g, "-");

async function savePage(body: unknown, plan: Plan): Promise<void> {
  try {
    const page = await (await send("console/api/plan/page", { method: "POST", body, headers: { accept: "text/html" } })).text();
    download(`plan-${fileName(plan)}.html`, page, "text/html");
  } catch (failure) {
    toast(asApiError(failure).message, { kind: "bad" });
  }
}
