// Keyboard: single keys and `g` followed by a letter; never while something is typed.
import { useEffect } from "preact/hooks";

interface Shortcut {
  /** `/`, `?`, `j`, or two keys: `g o`. */
  keys: string;
  what: string;
  run: () => void;
}

const shortcuts = new Set<Shortcut>();
let prefix = "";
let prefixAt = 0;

function typing(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

export function listenForKeys(): void {
  window.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    const pressed = prefix && event.timeStamp - prefixAt < 1500 ? `${prefix} ${event.key}` : event.key;
    prefix = "";
    // The latest registered wins: a table of the page before keys of the frame.
    const found = [...shortcuts].reverse().find((shortcut) => shortcut.keys === pressed);
    if (found) {
      event.preventDefault();
      found.run();
    } else if ([...shortcuts].some((shortcut) => shortcut.keys.startsWith(`${pressed} `))) {
      prefix = pressed;
      prefixAt = event.timeStamp;
    }
  });
}

export function allShortcuts(): Shortcut[] {
  return [...new Map([...shortcuts].map((shortcut) => [shortcut.keys, shortcut])).values()];
}

/** Keys that work while a component is mounted. */
export function useShortcuts(list: Shortcut[], deps: unknown[] = []): void {
  useEffect(() => {
    for (const shortcut of list) shortcuts.add(shortcut);
    return () => {
      for (const shortcut of list) shortcuts.delete(shortcut);
    };
  }, deps);
}
