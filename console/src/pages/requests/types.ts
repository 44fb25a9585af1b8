// What the server tells of kept requests (`kvarn.gateway.console.request_rows`, `request_detail`, `wire/step_records.py`).
import type { Cell } from "../../components/ribbon";
import type { Part } from "../../components/waterfall";
import type { Listed } from "../../lib/resource";

export interface Named {
  id: string;
  name: string;
}

export interface RequestRow {
  id: string;
  request_id: string;
  started_at: number;
  total_s: number;
  ttft_s: number | null;
  status: number;
  outcome: string;
  error_code: string;
  reason: string;
  /** Why it took as long as it did, one of `CAUSE_WORDS`; empty: not kept. */
  cause: string;
  cause_s: number;
  endpoint: string;
  model: string;
  model_version: string;
  adapter: string;
  replica: string;
  organization: Named;
  project: Named;
  key: (Named & { redacted: string }) | null;
  session: string | null;
  user: string | null;
  batch_id: string | null;
  input_tokens: number;
  cached_tokens: number;
  output_tokens: number;
  cost: number;
}

export interface RequestList extends Listed<RequestRow> {
  enabled: boolean;
  currency: string;
  /** Requests that match, and all of the same time; 10,000 stands for so many or more. */
  matching: number | null;
  kept: number | null;
}

interface TimelineEvent {
  name: string;
  at_s: number;
  numbers: Record<string, number>;
  turn: number;
}

export interface Counterfactual {
  change: string;
  text: string;
  total_s: number;
  error_s: number;
}

export interface Explanation {
  total_s: number;
  sentence: string;
  parts: Part[];
  cause: { code: string; seconds: number; agent: string; at_s: number };
  counterfactuals: Counterfactual[];
  tokens: Cell[];
  unexplained_s: number;
  beside: { name: string; seconds: number; other_s: number }[];
}

export interface Turn {
  id: string;
  model: string;
  model_version?: string;
  adapter?: string;
  replica?: string;
  service_tier?: string;
  outcome?: string;
  prompt_tokens?: number;
  cached_tokens?: number;
  output_tokens?: number;
  max_tokens?: number | null;
  choices?: number;
  finish_reasons?: string[];
}

export interface RequestDetail {
  request: RequestRow;
  currency: string;
  name: string;
  method: string;
  trace_id: string;
  model_route: string;
  metadata: Record<string, string>;
  warnings: string[];
  /** What the response cache had in it: `result`, of a hit `kind`, `age` and `similarity`; empty: nothing. */
  cache: Record<string, string>;
  turns: Turn[];
  events: TimelineEvent[];
  spans: unknown[];
  explanation: Explanation;
  typical: { requests: number; total_s: number; parts: Record<string, number> } | null;
  with_steps: boolean;
  session: string[];
}

export interface Contents {
  prompt: unknown;
  answer: unknown;
  /** Whether the prompt is all that the model was given. */
  is_whole: boolean;
  source: "" | "stored" | "sample";
}

type StepRow = [turn: number, computedTokens: number, outputTokens: number];

type StepRecord = [
  number: number, at_us: number, us: number, floor_us: number, prefill_tokens: number, prefill_pairs: number,
  decode_rows: number, decode_context: number, proposals: number, free_blocks: number, rows: StepRow[],
];

export interface StepTurn {
  request_id: string;
  tenant: string;
  adapter: string;
  priority: number;
  prompt_tokens: number;
  cached_tokens: number;
  accepted_us: number;
}

export interface TurnSteps {
  turns: StepTurn[];
  steps: StepRecord[];
  complete: boolean;
  kv_blocks: number;
}
