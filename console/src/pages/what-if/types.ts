// `console/api/what-if`: what can be changed, and the events of a simulation.

/** Values at equally spaced probabilities from 0 to 1. */
export interface Distribution {
  values: number[];
}

export interface Side {
  requests: number;
  answered: number;
  refused: number;
  failed: number;
  ttft_s: Distribution | null;
  tpot_s: Distribution | null;
  total_s: Distribution | null;
  within_targets: number | null;
  utilisation: number | null;
  preemptions: number | null;
  cached_share: number | null;
  device_hours: number | null;
}

export interface Simulated {
  measured: Side;
  before: Side;
  after: Side;
  ttft_target_s: number;
  tpot_target_s: number;
  settings: string[];
  notes: string[];
  logs: [string, string];
}

export interface Window {
  start: number;
  end: number;
  requests: number;
  newest_only: boolean;
}

export interface SimulatedModel {
  name: string;
  replicas: number;
  token_budget: number;
  max_num_seqs: number;
  kv_cache_dtype: string;
  quantization: string;
  measured: boolean;
}

export interface WhatIfChoices {
  models: SimulatedModel[];
  devices: string[];
  max_requests: number;
}
