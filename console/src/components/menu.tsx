// A button with a list of choices or actions: arrows move, Escape closes, a letter jumps.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";

export type MenuItem =
  | { kind?: "item"; label: string; note?: string; run?: () => void; to?: string; checked?: boolean; disabled?: boolean }
  | { kind: "line" }
  | { kind: "heading"; label: string };

export function Menu({ label, title, items, side = "left", up = false, plain = true }: {
  /** What the button shows. */
  label: ComponentChildren;
  /** What is chosen, for readers that do not see it: `Model` before `chat-8b`. */
  title: string;
  items: MenuItem[];
  side?: "left" | "right";
  up?: boolean;
  plain?: boolean;
}) {
  const open = useSignal(false);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const id = useId();

  const entries = (): HTMLElement[] => [...(box.current?.querySelectorAll<HTMLElement>("[role^=menuitem]:not([aria-disabled])") ?? [])];
  const close = (refocus: boolean): void => {
    open.value = false;
    if (refocus) button.current?.focus();
  };
  useEffect(() => {
    if (!open.value) return;
    entries()[0]?.focus();
    const outside = (event: Event): void => {
      if (event.target instanceof Node && !box.current?.contains(event.target)) close(false);
    };
    document.addEventListener("pointerdown", outside);
    return () => document.removeEventListener("pointerdown", outside);
  }, [open.value]);

  const onKey = (event: KeyboardEvent): void => {
    if (!open.value) {
      if (event.key === "ArrowDown") { open.value = true; event.preventDefault(); }
      return;
    }
    const list = entries();
    const at = list.indexOf(document.activeElement as HTMLElement);
    const steps: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1 + list.length, Home: 0, End: list.length - 1 };
    if (event.key === "Escape") close(true);
    else if (event.key === "Tab") { close(false); return; }
    else if (event.key in steps) list[(steps[event.key] ?? 0) % list.length]?.focus();
    else if (event.key.length === 1 && event.key !== " ") {
      const after = [...list.slice(at + 1), ...list];
      after.find((entry) => entry.textContent?.trim().toLowerCase().startsWith(event.key.toLowerCase()))?.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };

  return (
    <div class="menu" ref={box} onKeyDown={onKey}>
      <button
        ref={button}
        type="button"
        class={`button ${plain ? "plain" : ""}`}
        aria-haspopup="menu"
        aria-expanded={open.value}
        aria-controls={open.value ? id : undefined}
        onClick={() => (open.value = !open.value)}
      >
        <span class="cut"><span class="unseen">{title}: </span>{label}</span>
        <span class="chevron" aria-hidden="true">▾</span>
      </button>
      {open.value && (
        <div class={`menu-list ${side === "left" ? "left" : "right-side"} ${up ? "up" : ""}`} role="menu" id={id} aria-label={title}>
          {items.map((item, index) => {
            if (item.kind === "line") return <hr key={index} />;
            if (item.kind === "heading") return <div class="heading" key={index}>{item.label}</div>;
            const inside = [<span>{item.checked ? "✓ " : ""}{item.label}</span>, item.note && <span class="quiet">{item.note}</span>];
            const shared = { role: item.checked === undefined ? "menuitem" : "menuitemradio", tabIndex: -1, key: index } as const;
            if (item.to) return <a {...shared} href={item.to} onClick={() => close(false)}>{inside}</a>;
            return (
              <button
                {...shared}
                type="button"
                aria-checked={item.checked}
                aria-disabled={item.disabled || undefined}
                onClick={() => { if (!item.disabled) { close(true); item.run?.(); } }}
              >
                {inside}
              </button>
            );
          })}
        </div>
      )}
    </div>
  );
}
