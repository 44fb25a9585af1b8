// Causes in a word or two: a list has no room for sentences.
import { percent } from "../../lib/format";
import type { RequestRow } from "./types";

/** Words of each cause (`CauseCode` of `kvarn.explain.explanation`). */
export const CAUSE_WORDS: Record<string, string> = {
  "client slow to send": "slow client",
  limit: "limit",
  admission: "admission",
  "no replica": "no replica",
  "cold model": "cold model",
  "queue: slot": "slot",
  "queue: token budget": "token budget",
  "queue: latency targets of others": "others' targets",
  "queue: KV blocks": "KV blocks",
  "queue: priority": "priority",
  "queue: adapter": "adapter",
  "queue: tier": "tier",
  "queue: grammar": "grammar",
  "long prompt": "long prompt",
  "shared steps": "shared steps",
  "slow steps": "slow steps",
  preempted: "preempted",
  failover: "failover",
  "rejected proposals": "proposals",
  prepare: "prepare",
  moderation: "moderation",
  tools: "tools",
  "client slow to read": "slow reader",
  "own work": "own work",
};

/** The largest cause and its share of the total: `KV blocks 72 %`; null where none is kept, and of what was refused: it was over at once. */
export function causeText({ cause, cause_s, total_s, outcome }: Pick<RequestRow, "cause" | "cause_s" | "total_s" | "outcome">): string | null {
  if (!cause || outcome === "refused") return null;
  const word = CAUSE_WORDS[cause] ?? cause;
  return total_s > 0 ? `${word} ${percent(Math.min(1, cause_s / total_s))}` : word;
}
