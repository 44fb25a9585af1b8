// The latest rollout of a model: its share, its gates with what they have seen, its decisions; pause, promote, roll back.
import { useEffect } from "preact/hooks";
import { Badge, Loaded, Time, type Level } from "../../components/basics";
import { ask, type Question } from "../../components/dialog";
import { Table, type Column } from "../../components/table";
import { href } from "../../lib/address";
import { call } from "../../lib/api";
import { count, percent } from "../../lib/format";
import { useResource } from "../../lib/resource";
import { change } from "../access/change";
import { gateText, isUnderWay, outcomeText, rolloutText, scoreText } from "./text";
import type { ComparedAnswers, ModelDetail, Outcome, Rollout } from "./types";

const LEVELS: Record<string, Level> = { promoted: "good", rolled_back: "bad" };
const LATEST = 50;

type Command = "pause" | "resume" | "promote" | "rollback";
const DONE: Record<Command, string> = { pause: "is paused", resume: "goes on", promote: "is promoted", rollback: "is rolled back" };

export function RolloutSection({ model, reload }: { model: ModelDetail; reload: () => void }) {
  const path = `v1/rollouts/${encodeURIComponent(model.name)}`;
  const rollout = useResource<Rollout>(path);
  const told = model.rollout;
  const seen = told && [told.candidate, told.phase, told.paused, told.share, told.answered].join(" ");
  useEffect(() => { if (rollout.at.value) rollout.reload(); }, [seen]);
  const give = async (of: Rollout, action: Command): Promise<void> => {
    const question = questionOf(of, action);
    if (question && !(await ask(question))) return;
    const undo = action === "pause" ? (): void => void give(of, "resume") : undefined;
    if (await change(`${of.candidate} ${DONE[action]}.`, () => call(path, { method: "POST", body: { action } }), undo)) {
      rollout.reload();
      reload();
    }
  };
  return (
    <section class="section">
      <Loaded of={rollout} what="The rollout">
        {(of) => (
          <div class="stack">
            <header class="row models-head">
              <h2>Rollout of {of.candidate} <Badge level={LEVELS[of.phase] ?? (of.paused ? "warn" : "quiet")}>{of.phase.replace("_", " ")}{of.paused && isUnderWay(of) ? ", paused" : ""}</Badge></h2>
              {isUnderWay(of) && (
                <span class="row">
                  <button type="button" class="button small" onClick={() => void give(of, of.paused ? "resume" : "pause")}>{of.paused ? "Resume" : "Pause"}</button>
                  <button type="button" class="button small" onClick={() => void give(of, "promote")}>Promote</button>
                  <button type="button" class="button small danger" onClick={() => void give(of, "rollback")}>Roll back</button>
                </span>
              )}
            </header>
            <p>{rolloutText(of)}{isUnderWay(of) ? `; ${of.stable} answers ${of.phase === "shadow" ? "the clients" : "the rest"}. ${count(of.answered, "request")} answered in this step.` : "."}
              {of.waits_for && ` It waits for ${of.waits_for}.`}</p>
            {of.phase === "canary" && <meter class="models-share" min={0} max={1} value={of.share} aria-label={`Share of ${of.candidate}`}>{percent(of.share)}</meter>}
            {of.failure && <div class="error-box" role="alert"><strong>A gate has failed.</strong><span>{of.failure}</span></div>}
            <Table label="Gates" sortName="gates" main={false} columns={gateColumns(of)} rows={Object.entries(of.gates)} rowKey={([gate]) => gate} empty={null} />
            <details>
              <summary>{of.compared.length ? `The latest ${count(of.compared.length, "compared answer")}` : "No answers have been compared yet"}</summary>
              {of.compared.length > 0 && <Compared of={of} />}
            </details>
            <details>
              <summary>{count(of.log.length, "decision")}</summary>
              <dl class="facts models-log" tabIndex={0} aria-label="Decisions, newest first">
                {of.log.slice(-LATEST).reverse().map((each) => [
                  <dt><Time at={each.at} /></dt>,
                  <dd>{each.action.replaceAll("_", " ")}: {each.reason}{each.by && <span class="quiet"> by {each.by}</span>}</dd>,
                ])}
              </dl>
            </details>
          </div>
        )}
      </Loaded>
    </section>
  );
}

const KINDS = { shadowed: "the same request", matched: "two alike", golden: "golden prompt" };

/** Answers that the gates compared. Their prompts are on the requests' own pages, where they are kept and one may read them. */
function Compared({ of }: { of: Rollout }) {
  const request = (outcome: Outcome | null, words: string) =>
    outcome?.record_id ? <a href={href(`requests/${outcome.record_id}`, { tab: "contents" })} title="The request, with its prompt where it is kept">{words}</a> : words;
  const columns: Column<ComparedAnswers>[] = [
    { key: "kind", title: "Compared", cell: (row) => <>{KINDS[row.kind]}{row.question && <> <code>{row.question}</code></>}</>, grow: true },
    { key: "stable", title: of.stable, line: 2, cell: (row) => <>{request(row.stable, outcomeText(row.stable, row.stable_right))}<span class="models-phone"> · </span></> },
    { key: "candidate", title: of.candidate, line: 2, cell: (row) => request(row.candidate, outcomeText(row.candidate, row.candidate_right)) },
    { key: "score", title: "Score", cell: (row) => { const { text, level } = scoreText(row); return <Badge level={level}>{text}</Badge>; } },
  ];
  return <Table label="Compared answers" sortName="compared" main={false} columns={columns} rows={[...of.compared].reverse()} rowKey={(row) => String(of.compared.indexOf(row))} empty={null} />;
}

function gateColumns(of: Rollout): Column<[string, string]>[] {
  return [
    { key: "gate", title: "Gate", cell: ([gate]) => gate },
    { key: "state", title: "State", cell: ([gate]) => (of.failure.startsWith(`${gate}:`) ? <Badge level="bad">failed</Badge> : <Badge>{isUnderWay(of) ? "holds" : "held"}</Badge>) },
    { key: "seen", title: `What it has seen of ${of.candidate}`, cell: ([, seen]) => gateText(seen), line: 2 },
  ];
}

function questionOf(of: Rollout, action: Command): Question | null {
  if (action === "promote") {
    return { title: `Promote ${of.candidate}?`, action: "Promote", text: `It answers all requests to ${of.model} at once, in place of ${of.stable}, whatever steps are left. The rollout ends: the gates watch no longer.` };
  }
  if (action === "rollback") {
    return { title: `Roll ${of.candidate} back?`, action: "Roll back", danger: true, text: `${of.stable} answers all requests to ${of.model} at once. The rollout ends; to try again, deploy the version again.` };
  }
  return null;
}
