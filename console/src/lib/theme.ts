// Light, dark, or as the system says; kept in this browser.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "kvarn-theme";

function stored(): Theme {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system"; // storage is switched off
  }
}

export const theme = signal<Theme>(stored());
/** Rises when colours change: what draws on a canvas reads it and draws again. */
export const colours = signal(0);

export function setTheme(value: Theme): void {
  theme.value = value;
  try {
    localStorage.setItem(KEY, value);
  } catch {
    // kept for this page only
  }
}

/** Applies the theme, now and whenever it or the system's changes. */
export function followTheme(): void {
  effect(() => {
    if (theme.value === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme.value;
    colours.value = colours.peek() + 1;
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours.value += 1;
  });
}

/** Value of a CSS variable now, for canvases: `colour("--accent")`. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
