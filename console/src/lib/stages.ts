// Stages of a request and causes of a token's time: names and colours, the same everywhere.

/** Stages, in the order in which a request passes them (`kvarn.explain.explanation.Stage`). */
export const STAGES = {
  client: "client",
  admission: "admission",
  queue: "queue",
  prefill: "prefill",
  decode: "decode",
  transfer: "transfer",
  text: "text and moderation",
  unexplained: "unexplained",
} as const;

/** CSS class that gives a mark the colour and the pattern of its stage. */
export function stageClass(stage: string): string {
  return `stage stage-${stage in STAGES ? stage : "unexplained"}`;
}

/** Causes of a token's time (`TokenCause`), with the class of each. */
export const TOKEN_CAUSES = {
  "own prompt": "cause-prompt",
  "own step": "cause-own",
  "shared with a prompt": "cause-shared",
  preempted: "cause-preempted",
  "proposal accepted": "cause-accepted",
  failover: "cause-failover",
} as const;
export type TokenCause = keyof typeof TOKEN_CAUSES;
