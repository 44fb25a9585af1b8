// Answers of the routes that the models' page reads.

/** Answer of `GET /console/api/models`, and event `models` of its stream. */
export interface Models {
  models: ModelDetail[];
}

export interface ModelDetail {
  name: string;
  aliases: string[];
  path: string;
  version: number;
  fingerprint: string;
  kind: string | null;
  max_context_length: number | null;
  state: string;
  ready: boolean;
  error: string | null;
  external: boolean;
  autoscaled: boolean;
  replicas: Replica[];
  adapters: Adapter[];
  rollout: RolloutState | null;
}

export interface Replica {
  name: string;
  version: number;
  /** The checkpoint's; empty: not known yet. */
  fingerprint: string;
  state: string;
  stage: string | null;
  progress: number | null;
  starts: number;
  running: number;
  waiting: number;
  kv_blocks: number;
  kv_blocks_free: number;
  step_s: number | null;
  kernels: string | null;
  dtype: string | null;
  golden: Golden | null;
}

export interface Golden {
  passed_at: number | null;
  equal: number;
  drifted: number;
  unanswered: number;
  problem: string | null;
  action: string | null;
}

export interface Adapter {
  name: string;
  path: string;
  rank: number;
  bytes: number;
  loaded_at: number | null;
}

export interface RolloutState {
  candidate: string;
  phase: string;
  paused: boolean;
  share: number;
  answered: number;
}

/** Answer of `GET /v1/rollouts/{model}`. */
export interface Rollout extends RolloutState {
  model: string;
  stable: string;
  waits_for: string;
  failure: string;
  gates: Record<string, string>;
  log: { at: number; action: string; reason: string; by: string }[];
  /** The latest that the gates have compared, oldest first. */
  compared: ComparedAnswers[];
}

/** Measures of one answer. */
export interface Outcome {
  failed: boolean;
  ttft_s: number | null;
  tpot_s: number | null;
  completion_tokens: number;
  refusal: boolean;
  /** Id of the request, where it may have been kept; else empty. */
  record_id: string;
}

export interface ComparedAnswers {
  kind: "shadowed" | "matched" | "golden";
  stable: Outcome | null;
  candidate: Outcome | null;
  equal: boolean | null;
  question: string;
  stable_right: boolean | null;
  candidate_right: boolean | null;
}

/** A row of `GET /v1/organization/deployments`. */
export interface Deployment {
  model: string;
  version: number;
  previous_version: number | null;
  replicas: number;
  changed_at: number | null;
  changed_by: string | null;
  problem: string | null;
}

/** A row of `GET /v1/organization/deployments/versions`. */
export interface Version {
  version: number;
  settings: Record<string, unknown>;
  created_at: number;
  created_by: string;
}
