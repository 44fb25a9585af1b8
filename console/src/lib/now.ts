// The time, as a signal that moves every 10 s while the page is visible: for "3 min ago" and ages.
import { signal } from "@preact/signals";

export const now = signal(Date.now() / 1000);
/** Lets the time move. */
export function followTime(): void {
  const tick = (): void => {
    if (!document.hidden) now.value = Date.now() / 1000;
  };
  setInterval(tick, 10_000);
  document.addEventListener("visibilitychange", tick);
}
