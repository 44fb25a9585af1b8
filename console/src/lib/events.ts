// Server-sent events: a parser, and a stream that reconnects and rests while the page is hidden.
import { useEffect, useRef } from "preact/hooks";
import { useSignal, type ReadonlySignal } from "@preact/signals";
import { ApiError, send } from "./api";

interface ServerEvent {
  event: string;
  data: string;
}

/** Splits what has come into whole events; the rest is to be given again with what comes next. */
export function parseEvents(text: string): { events: ServerEvent[]; rest: string } {
  const blocks = text.split(/\r?\n\r?\n/);
  const rest = blocks.pop() ?? "";
  const events: ServerEvent[] = [];
  for (const block of blocks) {
    let event = "message";
    const data: string[] = [];
    for (const line of block.split(/\r?\n/)) {
      if (line.startsWith("event:")) event = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    }
    if (data.length) events.push({ event, data: data.join("\n") });
  }
  return { events, rest };
}

/** Milliseconds before the next try: 0.5 s doubled with each, at most 15 s, up to a fifth less so that pages do not come at once. */
export function backoffMs(tries: number, random: () => number = Math.random): number {
  return Math.min(15_000, 500 * 2 ** Math.min(tries, 10)) * (1 - random() / 5);
}

/** Events of one answer, until it ends or `signal` ends it. */
export async function* eventsOf(response: Response): AsyncGenerator<ServerEvent> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parsed = parseEvents(rest + value);
      rest = parsed.rest;
      yield* parsed.events;
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

type StreamState = "off" | "connecting" | "open" | "waiting" | "hidden";

export interface Stream {
  state: ReadonlySignal<StreamState>;
  error: ReadonlySignal<ApiError | null>;
  /** When the last event came, UNIX seconds; 0 before the first. */
  lastAt: ReadonlySignal<number>;
}

/** Follows a stream while `path` is not null and the page is visible. `onEvent` gets the event's name and its JSON. */
export function useStream(path: string | null, onEvent: (event: string, data: unknown) => void): Stream {
  const state = useSignal<StreamState>("off");
  const error = useSignal<ApiError | null>(null);
  const lastAt = useSignal(0);
  const handler = useRef(onEvent);
  handler.current = onEvent;

  useEffect(() => {
    if (path === null) {
      state.value = "off";
      return;
    }
    let stop = new AbortController();
    let tries = 0;
    let timer = 0;

    const connect = async (): Promise<void> => {
      const own = (stop = new AbortController());
      state.value = "connecting";
      try {
        const response = await send(path, { signal: own.signal, headers: { accept: "text/event-stream" } });
        state.value = "open";
        error.value = null;
        for await (const event of eventsOf(response)) {
          if (own.signal.aborted) return;
          tries = 0;
          lastAt.value = Date.now() / 1000;
          if (event.data !== "[DONE]") handler.current(event.event, JSON.parse(event.data));
        }
      } catch (failure) {
        if (own.signal.aborted) return;
        error.value = failure instanceof ApiError ? failure : new ApiError(String(failure), 0, "stream", "");
        if (error.value.status >= 400 && error.value.status < 500 && error.value.status !== 429) {
          state.value = "off"; // trying again would not help
          return;
        }
      }
      if (own.signal.aborted) return;
      state.value = "waiting";
      timer = window.setTimeout(() => void connect(), backoffMs(tries++));
    };
    const onVisibility = (): void => {
      window.clearTimeout(timer);
      stop.abort();
      if (document.hidden) state.value = "hidden";
      else void connect();
    };
    document.addEventListener("visibilitychange", onVisibility);
    onVisibility();
    return () => {
      document.removeEventListener("visibilitychange", onVisibility);
      window.clearTimeout(timer);
      stop.abort();
    };
  }, [path]);
  return { state, error, lastAt };
}
