// Tabs of a page; the chosen one is part of the address.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { param } from "../lib/address";

export interface Tab {
  id: string;
  title: string;
  content: () => ComponentChildren;
}

/** Only the chosen tab's content is made. `name`: the address's parameter. */
export function Tabs({ tabs, name = "tab", label }: { tabs: Tab[]; name?: string; label: string }) {
  const list = useRef<HTMLDivElement>(null);
  const chosen = param(name, tabs[0]?.id ?? "");
  const current = tabs.find((tab) => tab.id === chosen.value) ?? tabs[0];
  if (!current) return null;
  const onKey = (event: KeyboardEvent): void => {
    const at = tabs.indexOf(current);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    const next = to === undefined ? undefined : tabs[(to + tabs.length) % tabs.length];
    if (!next) return;
    event.preventDefault();
    chosen.value = next.id;
    list.current?.querySelector<HTMLElement>(`#tab-${name}-${next.id}`)?.focus();
  };
  return (
    <div>
      <div class="tabs" role="tablist" aria-label={label} ref={list} onKeyDown={onKey}>
        {tabs.map((tab) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            id={`tab-${name}-${tab.id}`}
            aria-selected={tab === current}
            aria-controls={`panel-${name}`}
            tabIndex={tab === current ? 0 : -1}
            onClick={() => (chosen.value = tab.id)}
          >
            {tab.title}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={`panel-${name}`} aria-labelledby={`tab-${name}-${current.id}`} tabIndex={-1}>
        {current.content()}
      </div>
    </div>
  );
}
