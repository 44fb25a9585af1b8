// What is said of models, without a look.
import type { Level } from "../../components/basics";
import { count, duration, percent } from "../../lib/format";
import type { ComparedAnswers, Golden, ModelDetail, Outcome, Replica, RolloutState } from "./types";

interface Said {
  text: string;
  level: Level;
}

const readyOf = (model: ModelDetail): number => model.replicas.filter((each) => each.state === "ready").length;
const driftedOf = (model: ModelDetail): Replica | undefined => model.replicas.find((each) => each.golden?.problem);

export function isUnderWay(rollout: RolloutState | null): rollout is RolloutState {
  return rollout !== null && (rollout.phase === "shadow" || rollout.phase === "canary");
}

/** Name of a version as requests may call it. */
export function versionName(model: string, version: number): string {
  return version ? `${model}@${version}` : "the configuration's version";
}

/** The version that serves and its checkpoint, as requests name it: `@3 · 320526888fde`, of the configuration's alone the checkpoint. */
export function servedText({ version, fingerprint }: Pick<ModelDetail, "version" | "fingerprint">): string {
  return [version ? `@${version}` : "", fingerprint].filter(Boolean).join(" · ") || "configured";
}

/** Share of the KV blocks of all replicas that are in use; null: not known. */
export function kvUse(replicas: Replica[]): number | null {
  const total = replicas.reduce((sum, each) => sum + each.kv_blocks, 0);
  const free = replicas.reduce((sum, each) => sum + each.kv_blocks_free, 0);
  return total ? (total - free) / total : null;
}

export function rolloutText(rollout: RolloutState): string {
  const { candidate, phase, paused, share } = rollout;
  const held = paused ? ", paused" : "";
  switch (phase) {
    case "shadow": return `${candidate} answers copies of requests${held}`;
    case "canary": return `${candidate} answers ${percent(share)} of the requests${held}`;
    case "promoted": return `${candidate} was promoted`;
    default: return `${candidate} was rolled back`;
  }
}

/** What a gate has seen; its figures say nothing before it has seen a pair. */
export function gateText(seen: string): string {
  return /\bof 0\b/.test(seen) && !/^\d/.test(seen) ? "nothing was seen yet" : seen;
}

const right = (is: boolean | null): string => (is === null ? "not asked" : is ? "right" : "wrong");

/** One of two compared answers: `TTFT 31 ms, 8 ms a token, 48 tokens`. */
export function outcomeText(of: Outcome | null, isRight: boolean | null): string {
  if (!of) return right(isRight);
  if (of.failed) return "failed";
  const times = [of.ttft_s !== null && `TTFT ${duration(of.ttft_s)}`, of.tpot_s !== null && `${duration(of.tpot_s)} a token`];
  return [...times, count(of.completion_tokens, "token"), of.refusal && "a refusal"].filter(Boolean).join(", ");
}

const more = (ratio: number, word: string): string => `${ratio < 0 ? "−" : "+"}${percent(Math.abs(ratio))} ${word}`;

/** What the gates made of a pair: the score of each that it told something. */
export function scoreText({ kind, stable, candidate, equal, stable_right, candidate_right }: ComparedAnswers): Said {
  if (kind === "golden") {
    if (stable_right === candidate_right) return { text: `both ${right(stable_right)}`, level: "quiet" };
    return candidate_right ? { text: "the new one is right", level: "good" } : { text: "the new one is wrong", level: "bad" };
  }
  if (!stable || !candidate) return { text: "-", level: "quiet" };
  if (candidate.failed || stable.failed) return { text: candidate.failed ? "the new one failed" : "the stable one failed", level: candidate.failed ? "bad" : "quiet" };
  if (candidate.refusal !== stable.refusal) return { text: candidate.refusal ? "only the new one refuses" : "only the stable one refuses", level: "warn" };
  if (equal !== null) return { text: equal ? "the same tokens" : "other tokens", level: equal ? "good" : "quiet" };
  if (candidate.ttft_s !== null && stable.ttft_s) return { text: more(candidate.ttft_s / stable.ttft_s - 1, "TTFT"), level: "quiet" };
  return { text: more((candidate.completion_tokens + 1) / (stable.completion_tokens + 1) - 1, "tokens"), level: "quiet" };
}

/** One model in a sentence: what is wrong with it, or what it does. */
export function modelSentence(model: ModelDetail): Said {
  const ready = readyOf(model);
  const drifted = driftedOf(model);
  if (model.error) return { level: "bad", text: `${model.name} cannot answer: ${model.error}.` };
  if (drifted) return { level: "bad", text: `${drifted.name} answers golden prompts of ${model.name} wrongly: ${drifted.golden?.problem}.` };
  if (!model.replicas.length) return { level: "quiet", text: `${model.name} sleeps: it has no replica, and ${model.autoscaled ? "the next request starts one" : "waking it starts them"}.` };
  if (!model.ready) return { level: "warn", text: `${model.name} takes no requests: ${model.state}.` };
  if (isUnderWay(model.rollout)) return { level: model.rollout.paused ? "warn" : "good", text: `${model.name} is being rolled out: ${rolloutText(model.rollout)}.` };
  if (ready < model.replicas.length) return { level: "warn", text: `${ready} of ${model.replicas.length} replicas of ${model.name} take requests.` };
  const name = model.version ? versionName(model.name, model.version) : model.name;
  const running = model.replicas.reduce((sum, each) => sum + each.running, 0);
  return { level: "good", text: `${name} takes requests with ${count(ready, "replica")}; ${running ? `${count(running, "sequence")} run` : "it is idle"}.` };
}

const URGENCY: Level[] = ["bad", "warn"];

/** All models in a sentence, and the one that it is about. */
export function modelsSentence(models: ModelDetail[]): Said & { model: string } {
  const first = models[0];
  if (!first) return { text: "No model is served, or your key may use none.", level: "warn", model: "" };
  for (const level of URGENCY) {
    const found = models.map((each) => ({ ...modelSentence(each), model: each.name })).find((said) => said.level === level);
    if (found) return found;
  }
  if (models.length === 1) return { ...modelSentence(first), model: first.name };
  const rolled = models.find((each) => isUnderWay(each.rollout));
  if (rolled) return { ...modelSentence(rolled), model: rolled.name };
  const ready = models.filter((each) => each.ready).length;
  const asleep = models.length - ready;
  return { level: "good", model: "", text: asleep ? `${ready} of ${models.length} models take requests; ${asleep} ${asleep === 1 ? "sleeps" : "sleep"}.` : `All ${models.length} models take requests.` };
}

/** State of a model for its badge. */
export function levelOf(model: ModelDetail): Level {
  if (model.error || driftedOf(model)) return "bad";
  if (!model.replicas.length) return "quiet";
  return model.ready && readyOf(model) === model.replicas.length ? "good" : "warn";
}

export function goldenText(golden: Golden | null): Said {
  if (!golden) return { text: "not asked", level: "quiet" };
  if (golden.problem) return { text: "wrong", level: "bad" };
  if (golden.passed_at === null) return { text: golden.unanswered ? "unanswered" : "not asked yet", level: "quiet" };
  return { text: "as expected", level: "good" };
}

/** Settings of a version that another does not have, or has otherwise: `seed 7 (was 1)`. */
export function changedSettings(now: Record<string, unknown>, before: Record<string, unknown> | undefined): string[] {
  if (!before) return [];
  const names = [...new Set([...Object.keys(now), ...Object.keys(before)])].sort();
  return names.flatMap((name) => {
    const [value, old] = [now[name], before[name]];
    if (JSON.stringify(value) === JSON.stringify(old)) return [];
    if (isObject(value) && isObject(old)) return changedSettings(value, old).map((text) => `${name}.${text}`);
    return [`${name} ${said(value)} (was ${said(old)})`];
  });
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);

function said(value: unknown): string {
  if (value === undefined || value === null) return "default";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 60 ? `${text.slice(0, 57)}…` : text;
}

/** A number of replicas from what was typed; NaN where it is none. */
export function replicasOf(text: string): number {
  const value = Number(text.trim() || "x");
  return Number.isInteger(value) && value >= 0 && value <= 256 ? value : Number.NaN;
}
