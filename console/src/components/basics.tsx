// Small parts that every page uses.
import type { ComponentChildren } from "preact";
import { useSignal } from "@preact/signals";
import type { ApiError } from "../lib/api";
import { href } from "../lib/address";
import { UNKNOWN, dateTime, duration, relative } from "../lib/format";
import { now } from "../lib/now";
import type { Resource } from "../lib/resource";
import { toast } from "./toast";

/** Copies `text`; says that it did. */
export function CopyButton({ text, label = "Copy", what = "" }: { text: string; label?: string; what?: string }) {
  const done = useSignal(false);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      done.value = true;
      setTimeout(() => (done.value = false), 1500);
    } catch {
      toast("The browser does not allow copying here (it needs https or localhost). Select the text instead.", { kind: "bad" });
    }
  };
  return (
    <button type="button" class="copy" onClick={copy} aria-label={done.value ? undefined : `${label} ${what || text}`.slice(0, 80)}>
      {done.value ? "Copied" : label}
    </button>
  );
}

/** A time: how long ago, with the whole date on hover. `at` in UNIX seconds. */
export function Time({ at, absolute = false }: { at: number | null | undefined; absolute?: boolean }) {
  if (at === null || at === undefined) return <Unknown />;
  const [near, whole] = [relative(at, now.value), dateTime(at)];
  return (
    <time class="nowrap" dateTime={new Date(at * 1000).toISOString()} title={absolute ? near : whole}>
      {absolute ? whole : near}
    </time>
  );
}

/** A value that is not known, and why. */
export function Unknown({ why = "" }: { why?: string }) {
  return (
    <span class="quiet" title={why || undefined}>
      {UNKNOWN}
      {why && <span class="unseen"> ({why})</span>}
    </span>
  );
}

export type Level = "good" | "warn" | "bad" | "quiet";

/** A word with a border: a state, a role. */
export function Badge({ level = "quiet", children }: { level?: Level; children: ComponentChildren }) {
  return <span class={`badge ${level}`}>{children}</span>;
}

export interface TileData {
  label: string;
  /** As it is shown, with its unit (`lib/format.ts`). */
  value: string;
  /** What it is made of: another page of the console. */
  to?: string;
  note?: string;
  level?: Level;
  /** Why the value is "-". */
  why?: string;
}

/** Numbers side by side, each a link to what it is made of. */
export function Tiles({ tiles, label = "Key figures" }: { tiles: TileData[]; label?: string }) {
  return (
    <div class="tiles" role="list" aria-label={label}>
      {tiles.map((tile) => {
        const level = tile.level && tile.level !== "quiet" ? tile.level : "";
        const inside = (
          <dl>
            <dt>{tile.label}</dt>
            <dd class={level}>
              {tile.value === UNKNOWN ? <Unknown why={tile.why ?? "no data yet"} /> : tile.value}
              {level === "bad" && <span class="unseen"> (bad)</span>}
              {tile.note && <div class="note">{tile.note}</div>}
            </dd>
          </dl>
        );
        return (
          <div role="listitem" key={tile.label}>
            {tile.to ? <a class="tile" href={href(tile.to)}>{inside}</a> : <div class="tile">{inside}</div>}
          </div>
        );
      })}
    </div>
  );
}

/** A view without data: what would be here, and the command or the button that makes it so. */
export function Empty({ what, command, children }: { what: string; command?: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="quiet">{what}</p>
      {command && (
        <pre>
          {command} <CopyButton text={command} what="the command" />
        </pre>
      )}
      {children}
    </div>
  );
}

/** A failure: what failed, what to do, and the request id to copy. */
export function ErrorBox({ error, what, retry }: { error: ApiError | Error; what?: string; retry?: () => void }) {
  const requestId = "requestId" in error ? error.requestId : "";
  return (
    <div class="error-box" role="alert">
      {what && <strong>{what}</strong>}
      <span>{error.message}</span>
      <span class="row">
        {requestId && (
          <span class="quiet">
            Request <code>{requestId}</code> <CopyButton text={requestId} what="the request id" />
          </span>
        )}
        {retry && (
          <button type="button" class="button small" onClick={retry}>
            Try again
          </button>
        )}
      </span>
    </div>
  );
}

/** What a resource shows: its data; old data greyed with its age where newer could not be had; an error where there is none. */
export function Loaded<T>({ of, what, children }: { of: Resource<T>; what: string; children: (data: T) => ComponentChildren }) {
  const [data, error] = [of.data.value, of.error.value];
  if (data === undefined) {
    if (error) return <ErrorBox error={error} what={`${what} could not be loaded.`} retry={of.reload} />;
    return <p class="quiet" aria-busy="true">Loading …</p>;
  }
  // The same elements with an error and without one: what somebody is typing stays.
  return (
    <>
      {error && (
        <p class="late" role="status">
          {error.message} Shown: {what.toLowerCase()} of {duration(Math.max(1, Math.round(now.value - of.at.value)))} ago.{" "}
          <button type="button" class="button small" onClick={of.reload}>Try again</button>
        </p>
      )}
      <div class={error ? "stale" : "whole"}>{children(data)}</div>
    </>
  );
}

/** Names and values, two columns. */
export function Facts({ facts }: { facts: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => [<dt>{name}</dt>, <dd>{value}</dd>])}
    </dl>
  );
}

/** A secret, shown once. */
export function Secret({ value, what }: { value: string; what: string }) {
  return (
    <div>
      <div class="secret">
        <code>{value}</code> <CopyButton text={value} what={what} />
      </div>
      <p class="quiet">This is the only time {what} is shown.</p>
    </div>
  );
}
