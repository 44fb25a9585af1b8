// The map of KV blocks: a cell a block; the path of one to the root of the prefix cache.
import { useSignal, type ReadonlySignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { CopyButton } from "../../components/basics";
import { href, param, setQuery } from "../../lib/address";
import { call, withQuery } from "../../lib/api";
import { bytes, count, number, percent } from "../../lib/format";
import { asApiError } from "../../lib/resource";
import { colour, colours } from "../../lib/theme";
import { requestOf } from "../requests/agents";
import { mapLayout, paintMap, pixel } from "./canvas";
import { NOBODY, type LiveState } from "./state";
import { COLOURINGS, ON_DEVICE, blockText, blocksACell, classNames, classesOf, countClasses, kvText, type Colouring } from "./words";

/** Answer of `GET /console/api/live/block`. */
interface Block {
  block: number;
  tenant: string | null;
  adapter: string | null;
  is_adapter: boolean;
  depth: number;
  tokens: number;
  path: [block: number, holders: number, followers: number][];
  request_ids: string[] | null;
}

const TENANT_COLOURS = ["--series-1", "--series-2", "--series-3", "--series-4", "--tool", "--prefill", "--good", "--bad", "--admission", "--text-stage"];

const TIER_COLOURS = ["--prefill", "--series-3", "--tool", "--admission"];

/** Colour and opacity of each class of a colouring. */
function looks(colouring: Colouring, tenants: number, tiers: number): [name: string, alpha: number][] {
  if (colouring === "tier") {
    const below = Array.from({ length: tiers }, (_, index): [string, number] => [TIER_COLOURS[index % TIER_COLOURS.length] ?? "--text", 0.8]);
    return [["--line", 0.7], ["--queue", 0.6], ["--accent", 1], ["--transfer", 1], ...below];
  }
  if (colouring === "tenant") {
    const own = Array.from({ length: tenants }, (_, index): [string, number] => [TENANT_COLOURS[index % TENANT_COLOURS.length] ?? "--text", index < TENANT_COLOURS.length ? 1 : 0.6]);
    return [["--line", 0.7], ...own, ["--unexplained", 1], ["--client", 0.6], ["--transfer", 1]];
  }
  if (colouring === "reuse") {
    return [["--line", 0.7], ["--queue", 0.45], ["--accent", 0.45], ["--accent", 0.6], ["--accent", 0.7], ["--accent", 0.8], ["--accent", 0.9], ["--accent", 1], ["--transfer", 1]];
  }
  return [["--line", 0.7], ["--accent", 1], ["--queue", 1], ["--queue", 0.85], ["--queue", 0.7], ["--queue", 0.55], ["--queue", 0.42], ["--queue", 0.3], ["--transfer", 1]];
}

const rgba = (hex: string, alpha: number): string => `${hex}${Math.round(alpha * 255).toString(16).padStart(2, "0")}`;

/** The block that is asked for, once the pointer rests. */
function useBlock(block: number | null, model: string, replica: string): { block: Block | null; error: string } {
  const found = useSignal<Block | null>(null);
  const error = useSignal("");
  useEffect(() => {
    error.value = "";
    if (block === null || !replica) return void (found.value = null);
    const stop = new AbortController();
    const timer = setTimeout(() => {
      call<Block>(withQuery("console/api/live/block", { block, model, replica }), { signal: stop.signal })
        .then((answer) => (found.value = answer))
        .catch((failure: unknown) => { if (!stop.signal.aborted) error.value = asApiError(failure).message; });
    }, 120);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [block, model, replica]);
  return { block: found.value?.block === block ? found.value : null, error: error.value };
}

export function KvMap({ state, changed }: { state: LiveState; changed: ReadonlySignal<number> }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const hovered = useSignal<number | null>(null);
  const pointed = useRef(false); // by the mouse; else by a key, and the page that moves below a resting mouse takes nothing back
  const width = useSignal(0);
  const colouring = COLOURINGS.find((each) => each === param("colour", "tenant").value) ?? "tenant";
  const chosen = param("block").value;
  const blocks = state.states.length;
  const classes = classesOf(state, colouring);
  const cells = classes.length;
  const asked = hovered.value ?? (/^\d+$/.test(chosen) && Number(chosen) < cells ? Number(chosen) : null);
  const told = useBlock(asked !== null && asked < blocks ? asked : null, state.model, state.replica);
  const theme = colours.value;
  void changed.value;
  const names = classNames(colouring, state.tenants, state.tiers);
  const shades = looks(colouring, state.tenants.length, state.tiers.length);
  const marked = told.block ? told.block.path.map(([block]) => block) : [];
  useEffect(() => {
    const frame = requestAnimationFrame(() => {
      const idle = colouring === "tenant" ? 0.5 : 1;
      const pixels = Uint32Array.from([...shades.map(([name, alpha]) => pixel(colour(name), alpha)), ...shades.map(([name, alpha]) => pixel(colour(name), alpha * idle))]);
      if (canvas.current) paintMap(canvas.current, state, classes, pixels, marked, asked, colour("--text"));
    });
    return () => cancelAnimationFrame(frame);
  }, [state.blocksVersion, colouring, theme, asked, told.block, width.value]);
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const watch = new ResizeObserver(() => (width.value = element.clientWidth));
    watch.observe(element);
    return () => watch.disconnect();
  }, [blocks === 0]);

  if (!blocks) return <p class="quiet">{state.totals ? kvText(state.totals) : ""} The map of blocks has not come yet.</p>;
  const layout = mapLayout(cells, width.value || 600);
  const at = (event: MouseEvent): number | null => {
    const area = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const column = Math.floor((event.clientX - area.left) / layout.side);
    const block = Math.floor((event.clientY - area.top) / layout.side) * layout.columns + column;
    return column < layout.columns && block < cells ? block : null;
  };
  const choose = (block: number | null): void => setQuery({ block });
  const onMove = (event: MouseEvent): void => {
    if (!event.movementX && !event.movementY) return;
    hovered.value = at(event);
    pointed.current = true;
  };
  const onLeave = (): void => {
    if (pointed.current) hovered.value = null;
  };
  const onKey = (event: KeyboardEvent): void => {
    const before = told.block?.path[1]?.[0];
    const now = asked ?? 0;
    const next = event.key === "Home" ? 0 : event.key === "End" ? cells - 1 : event.key === "p" && before !== undefined ? before
      : now + ({ ArrowRight: 1, ArrowLeft: -1, ArrowDown: layout.columns, ArrowUp: -layout.columns }[event.key] ?? 0);
    if (event.key === "Enter") choose(asked);
    if (event.key === "Escape") choose((hovered.value = null));
    if (next === now) return;
    event.preventDefault();
    hovered.value = Math.min(cells - 1, Math.max(0, next));
    pointed.current = false;
  };
  const counts = countClasses(classes);
  const each = blocksACell(state.tiers);
  const said = asked === null ? "" : asked >= blocks ? `${each > 1 ? `${number(each)} blocks` : "A block"} of the ${names[classes[asked] ?? 0] ?? ""}; whose is not told` : `Block ${number(asked)}: ${blockText(state.states[asked] ?? 0, state.owners[asked] ?? NOBODY, state.tenants)}`;
  return (
    <figure>
      <div class="row live-switch" role="group" aria-label="Colour blocks by">
        <span class="quiet">Colour by</span>
        {COLOURINGS.map((each) => (
          <button key={each} type="button" class="button small" aria-pressed={each === colouring} onClick={() => (param("colour", "tenant").value = each)}>{each}</button>
        ))}
        <span class="quiet">{state.totals && kvText(state.totals)}</span>
      </div>
      <canvas ref={canvas} class="live-map" style={{ height: `${layout.lines * layout.side}px` }} tabIndex={0} role="slider" aria-label="KV blocks"
        aria-valuemin={0} aria-valuemax={cells - 1} aria-valuenow={asked ?? 0} aria-valuetext={said || `${blocks} blocks`}
        onMouseMove={onMove} onMouseLeave={onLeave} onBlur={() => (hovered.value = null)}
        onClick={(event) => choose(at(event))} onKeyDown={onKey} />
      <figcaption class="live-block">
        <ul class="stage-key" aria-label={`Blocks by ${colouring}`}>
          {names.map((name, index) => ({ name, index })).filter(({ index }) => counts[index]).map(({ name, index }) => (
            <li key={name}>
              <span class="swatch" style={{ background: rgba(colour(shades[index]?.[0] ?? "--text"), shades[index]?.[1] ?? 1) }} aria-hidden="true" />
              {name}: {index >= ON_DEVICE && colouring === "tier" ? number(state.tiers[index - ON_DEVICE]?.blocks) : <>{number(counts[index])} ({percent((counts[index] ?? 0) / blocks)})</>}
            </li>
          ))}
          {colouring === "tenant" && <li>paler: only the prefix cache keeps it</li>}
          {colouring === "tier" && (state.tiers.length ? each > 1 && <li>below the device a cell is {number(each)} blocks</li> : <li>this replica has no tier below the device (kv_tiers)</li>)}
        </ul>
        <p class="readout">{said || "Point at a block, or move with the arrow keys, to see whose it is and its path to the root; Enter keeps it."}</p>
        {asked !== null && asked < blocks && <BlockPath told={told.block} error={told.error} choose={choose} />}
        {state.tiers.length > 0 && <p class="quiet">Below the device: {state.tiers.map((tier) =>
          `${tier.name} ${count(tier.blocks, "block")}, ${bytes(tier.used_bytes)} of ${bytes(tier.capacity_bytes)}`).join("; ")}.</p>}
      </figcaption>
    </figure>
  );
}

function BlockPath({ told, error, choose }: { told: Block | null; error: string; choose: (block: number) => void }) {
  if (error) return <p class="late">{error}</p>;
  if (!told) return <p class="quiet">…</p>;
  const shown = told.path.slice(0, 24);
  return (
    <div class="stack live-path">
      <p>
        {told.tenant ? `Of ${told.tenant}. ` : ""}{told.adapter ? `Adapter ${told.adapter}. ` : ""}
        {told.depth ? `${number(told.depth)} blocks from the root, ${number(told.tokens)} tokens.` : "The prefix cache does not name it."}{" "}
        {told.request_ids === null ? "Who holds it is not shown to you." : told.request_ids.length ? <>Held by {told.request_ids.map((id) => (
          <span key={id}><a href={href(`requests/${requestOf(id)}`)}>{requestOf(id)}</a> </span>))}</> : "No request holds it."}
      </p>
      {told.depth > 0 && (
        <p class="row">
          {shown.map(([block, holders, followers], index) => (
            <button key={block} type="button" class="button small" onClick={() => choose(block)}
              title={`held by ${count(holders, "request")}, followed by ${count(followers, "cached block")}`}>
              {index ? "← " : ""}{number(block)}{holders > 1 ? ` ×${holders}` : ""}
            </button>
          ))}
          {told.path.length > shown.length ? <span class="quiet">← {told.path.length - shown.length} more</span> : <span class="quiet">← root</span>}
          <CopyButton text={told.path.map(([block]) => block).join(" ")} what="the path" />
        </p>
      )}
    </div>
  );
}
