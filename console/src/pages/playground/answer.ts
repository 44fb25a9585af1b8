// An answer as it comes: chunks are added to it, and each keeps when it came.
import type { Cell } from "../../components/ribbon";
import type { ToolCall } from "./conversation";

export interface Alternative {
  text: string;
  logprob: number;
  bytes: number[] | null;
}

export interface Token extends Alternative {
  top: Alternative[];
}

/** An answer that is not over, or its details afterwards: they are not kept with the conversation. */
export interface Draft {
  text: string;
  reasoning: string;
  calls: ToolCall[];
  tokens: Token[];
  /** One for each chunk with tokens, until the server tells each token's. */
  cells: Cell[];
  /** Seconds from sending to the first and the latest token. */
  first_s: number | null;
  last_s: number | null;
  inputTokens: number | null;
  cachedTokens: number | null;
  outputTokens: number | null;
  finish: string;
}

interface TokenPart { token: string; logprob: number; bytes?: number[] | null; top_logprobs?: TokenPart[] }
interface CallPart { index?: number; id?: string; function?: { name?: string; arguments?: string } }
interface Message { content?: string | null; reasoning?: string | null; refusal?: string | null; tool_calls?: CallPart[] | null }

/** A chunk of a stream, or a whole answer. */
export interface Chunk {
  choices?: { delta?: Message; message?: Message; finish_reason?: string | null; logprobs?: { content?: TokenPart[] | null } | null }[];
  usage?: { prompt_tokens: number; completion_tokens: number; prompt_tokens_details?: { cached_tokens?: number } | null } | null;
}

export function emptyDraft(text = "", tokens: Token[] = []): Draft {
  return {
    text, reasoning: "", calls: [], tokens, cells: [], first_s: null, last_s: null,
    inputTokens: null, cachedTokens: null, outputTokens: null, finish: "",
  };
}

const alternative = ({ token, logprob, bytes }: TokenPart): Alternative => ({ text: token, logprob, bytes: bytes ?? null });

/** The draft with a chunk that came `at_s` after sending. */
export function withChunk(draft: Draft, chunk: Chunk, at_s: number): Draft {
  const next = { ...draft };
  if (chunk.usage) {
    next.inputTokens = chunk.usage.prompt_tokens;
    next.outputTokens = chunk.usage.completion_tokens;
    next.cachedTokens = chunk.usage.prompt_tokens_details?.cached_tokens ?? null;
  }
  const choice = chunk.choices?.[0];
  if (!choice) return next;
  const message = choice.delta ?? choice.message ?? {};
  next.text += (message.content ?? "") + (message.refusal ?? "");
  next.reasoning += message.reasoning ?? "";
  if (message.tool_calls?.length) next.calls = withCalls(draft.calls, message.tool_calls);
  const tokens = choice.logprobs?.content ?? [];
  if (tokens.length) next.tokens = [...draft.tokens, ...tokens.map((token) => ({ ...alternative(token), top: (token.top_logprobs ?? []).map(alternative) }))];
  if (choice.finish_reason) next.finish = choice.finish_reason;
  const came = message.content || message.reasoning || message.refusal || message.tool_calls?.length || tokens.length;
  if (came) {
    next.cells = [...draft.cells, [at_s, at_s - (draft.last_s ?? 0), "as it came"]];
    next.first_s = draft.first_s ?? at_s;
    next.last_s = at_s;
  }
  return next;
}

function withCalls(calls: ToolCall[], parts: CallPart[]): ToolCall[] {
  const next = [...calls];
  for (const [place, part] of parts.entries()) {
    const index = part.index ?? place;
    const old = next[index] ?? { id: "", name: "", arguments: "" };
    next[index] = {
      id: part.id || old.id || `call_${index}`,
      name: old.name + (part.function?.name ?? ""),
      arguments: old.arguments + (part.function?.arguments ?? ""),
    };
  }
  return next.filter(Boolean);
}

/** Tokens a second after the first; null before there are two moments. Chunks stand for tokens until these are counted. */
export function tokensPerSecond(draft: Draft): number | null {
  const { first_s, last_s } = draft;
  const count = draft.outputTokens ?? Math.max(draft.tokens.length, draft.cells.length);
  if (first_s === null || last_s === null || last_s <= first_s || count < 2) return null;
  return (count - 1) / (last_s - first_s);
}

/** Text of tokens, of which several may make up one character; null where the last character is not whole. */
export function textOf(tokens: Alternative[]): string | null {
  const bytes = tokens.flatMap((token) => token.bytes ?? [...new TextEncoder().encode(token.text)]);
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}

/** Share of a token among all that could have stood there: `exp(logprob)`. */
export const probability = (token: { logprob: number }): number => Math.min(1, Math.exp(token.logprob));

/** Shade of a token, 0 (nearly sure) to 3 (a surprise). */
export function surprise(token: { logprob: number }): 0 | 1 | 2 | 3 {
  const share = probability(token);
  return share >= 0.9 ? 0 : share >= 0.5 ? 1 : share >= 0.1 ? 2 : 3;
}
