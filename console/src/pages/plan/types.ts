// The planner's answer, as `kvarn.planner.answer` has it, and what may be chosen.

/** A number with what it follows from. */
export interface Quantity {
  value: number;
  unit: string;
  formula: string;
  assumption: string;
  /** Relative error to expect, either way; 0: exact; null: not known. */
  error: number | null;
  source: string;
}

/** Name and quantity. */
export interface Part {
  name: string;
  quantity: Quantity;
}

export interface Pool {
  role: string;
  replicas: number;
  devices: number;
  capacity_rps: Quantity;
  utilisation: Quantity;
  batch: Quantity;
}

export interface Money {
  device_hour: Quantity;
  devices: Quantity;
  services: Quantity;
  total: Quantity;
  per_million_tokens: Quantity;
  per_million_input: Quantity;
  per_million_output: Quantity;
  full_per_million_output: Quantity;
  api_hour: Quantity | null;
  break_even_tokens_per_day: Quantity | null;
  energy: Quantity | null;
  power: Quantity | null;
}

export interface Layout {
  device: string;
  tensor_parallel: number;
  pipeline_parallel: number;
  expert_parallel: boolean;
  weights: string;
  kv_dtype: string;
  host_gib: number;
}

export interface Candidate {
  name: string;
  layout: Layout;
  /** Whether this version of Kvarn runs it. */
  is_served: boolean;
  pools: Pool[];
  devices: number;
  memory: Part[];
  kv_tokens: Quantity;
  users: Quantity;
  largest_batch: Quantity;
  max_context_length: number;
  decode_step: Part[];
  prefill: Part[];
  decode_floor: Quantity;
  prefill_floor: Quantity;
  compute_bound_batch: Quantity;
  ttft: Quantity;
  tpot: Quantity;
  throughput: Quantity;
  money: Money;
  reasons: string[];
  settings: Record<string, unknown>;
}

export interface Rejection {
  name: string;
  layout: Layout;
  reason: string;
}

/** Plots of one candidate: what other rates cost, and the latencies of the same replicas at other rates. */
export interface Curves {
  candidate: string;
  cost: { rate_rps: number; devices: number; dollars_per_hour: number; dollars_per_million_tokens: number }[];
  latency: { rate_rps: number; ttft_s: number; tpot_s: number }[];
}

export interface Plan {
  model: string;
  model_facts: Part[];
  request: Record<string, unknown>;
  candidates: Candidate[];
  rejected: Rejection[];
  curves: Curves[];
  notes: string[];
}

export interface DeviceChoice {
  name: string;
  title: string;
  memory_gb: number;
  /** Dollars an hour; null: the table has no price. */
  price: number | null;
  price_date: string;
}

export interface TrafficChoice {
  name: string;
  title: string;
  input_tokens: number;
  output_tokens: number;
  cached_share: number;
}

/** `GET console/api/plan`. */
export interface PlanChoices {
  served: string[];
  presets: string[];
  devices: DeviceChoice[];
  traffic: TrafficChoice[];
}
