// The question of the page: its state in the address, and the request that follows from it.
import { address, setQuery, type Query } from "../../lib/address";

/** Value of `of` where the model is the config.json that was pasted. */
export const PASTED = "config.json";
/** Characters of a config.json that a link holds at most: longer ones are kept by proxies from passing. */
export const MOST_IN_LINK = 6000;

/** What is asked, in the page's words. Numbers are as typed or slid. */
export interface Question {
  /** Name of a served model or of a preset, or `PASTED`. */
  of: string;
  config: string;
  devices: string[];
  rate: number;
  input: number;
  output: number;
  cached: number;
  ttft: number;
  tpot: number;
  percentile: number;
  weights: string;
  kv: string;
  tp: number;
  /** 0: as much as the traffic needs. */
  context: number;
  services: number;
  prices: Record<string, number>;
  apiInput: number;
  apiOutput: number;
}

export const FALLBACK: Question = {
  of: "", config: "", devices: ["h100"], rate: 5, input: 1024, output: 256, cached: 0, ttft: 0.5, tpot: 0.05, percentile: 0.95,
  weights: "", kv: "", tp: 0, context: 0, services: 0.4, prices: {}, apiInput: 0, apiOutput: 0,
};

const NUMBERS = ["rate", "input", "output", "cached", "ttft", "tpot", "percentile", "tp", "context", "services", "apiInput", "apiOutput"] as const;
const TEXTS = ["of", "config", "weights", "kv"] as const;

/** The question of an address; what is missing or no number is as in `FALLBACK`. */
export function questionOf(query: URLSearchParams): Question {
  const found: Question = { ...FALLBACK };
  for (const name of NUMBERS) {
    const value = Number(query.get(name) ?? NaN);
    if (Number.isFinite(value) && value >= 0) found[name] = value;
  }
  for (const name of TEXTS) found[name] = query.get(name) ?? FALLBACK[name];
  const devices = (query.get("gpu") ?? "").split(",").filter(Boolean);
  if (devices.length) found.devices = [...new Set(devices)];
  found.prices = pricesOf(query.get("price") ?? "");
  return found;
}

/** Prices by device from `h100:2.5,h200:3`. */
export function pricesOf(text: string): Record<string, number> {
  const pairs = text.split(",").map((each) => each.split(":")).map(([name, price]) => [name ?? "", Number(price)] as const);
  return Object.fromEntries(pairs.filter(([name, price]) => name && Number.isFinite(price) && price > 0));
}

/** Changes of the address that make it say `question`: what is as in `FALLBACK` is left out. */
export function queryOf(question: Question): Query {
  const changes: Query = {};
  for (const name of [...NUMBERS, ...TEXTS]) changes[name] = question[name] === FALLBACK[name] ? null : question[name];
  if (question.of !== PASTED || question.config.length > MOST_IN_LINK) changes["config"] = null;
  const devices = question.devices.join(",");
  changes["gpu"] = devices === FALLBACK.devices.join(",") ? null : devices;
  changes["price"] = Object.entries(question.prices).map(([name, price]) => `${name}:${price}`).join(",") || null;
  return changes;
}

export function changeAddress(question: Question): void {
  setQuery(queryOf(question));
}

export const currentQuestion = (): Question => questionOf(address.value.query);

/** A config.json without what its layout needs, so that a link can hold it; or what is wrong with it. */
export function compactConfig(text: string): { config: string } | { problem: string } {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    return { problem: "This is not JSON. Paste the whole config.json of a checkpoint, braces included." };
  }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) return { problem: "A config.json is a JSON object." };
  return { config: JSON.stringify(parsed) };
}

/** Body of `POST console/api/plan`; null while no model is named. */
export function requestOf(question: Question): Record<string, unknown> | null {
  const model = question.of === PASTED ? (question.config ? (JSON.parse(question.config) as unknown) : null) : question.of;
  if (!model) return null;
  const choices = {
    ...(question.weights ? { weights: [question.weights] } : {}),
    ...(question.kv ? { kv_dtypes: [question.kv] } : {}),
    ...(question.tp ? { tensor_parallel: [question.tp] } : {}),
  };
  const api = question.apiInput || question.apiOutput ? { api_price: [question.apiInput, question.apiOutput] } : {};
  return {
    model,
    ...(question.of === PASTED ? { name: PASTED } : {}),
    devices: question.devices,
    traffic: { rate_rps: question.rate, input_tokens: question.input, output_tokens: question.output, cached_share: question.cached },
    slo: { ttft_s: question.ttft, tpot_s: question.tpot, percentile: question.percentile },
    money: { prices: question.prices, services_share: question.services, ...api },
    choices,
    ...(question.context ? { max_context_length: question.context } : {}),
  };
}
