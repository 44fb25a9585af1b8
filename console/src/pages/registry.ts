// The pages. A new one is a file here and an entry in this list; it is loaded when it is first opened.
import type { ComponentType } from "preact";
import type { Role } from "../lib/session";

export interface Page {
  /** First part of the address: `requests` in `/console/requests/req-1`. */
  name: string;
  title: string;
  /** Letter after `g` that opens it. */
  key?: string;
  /** Place in the rail, from 1; without one the page is reached by links. On a phone the first four have a place. */
  rail?: number;
  role: Role;
  /** The page's component is the module's default export. */
  load: () => Promise<{ default: ComponentType }>;
}

export const PAGES: Page[] = [
  { name: "overview", title: "Overview", key: "o", rail: 1, role: "member", load: () => import("./overview") },
  { name: "requests", title: "Requests", key: "r", rail: 3, role: "member", load: () => import("./requests") },
  { name: "sessions", title: "Session", role: "member", load: () => import("./sessions") },
  { name: "playground", title: "Playground", key: "p", rail: 2, role: "member", load: () => import("./playground") },
  { name: "live", title: "Live", key: "l", rail: 4, role: "member", load: () => import("./live") },
  { name: "models", title: "Models", key: "m", rail: 5, role: "member", load: () => import("./models") },
  { name: "knowledge", title: "Knowledge", key: "k", rail: 6, role: "member", load: () => import("./knowledge") },
  { name: "tools", title: "Tools", key: "t", rail: 7, role: "member", load: () => import("./tools") },
  { name: "usage", title: "Usage", key: "u", rail: 8, role: "usage", load: () => import("./usage") },
  { name: "access", title: "Access", key: "a", rail: 9, role: "member", load: () => import("./access") },
  { name: "plan", title: "Plan", key: "c", rail: 12, role: "member", load: () => import("./plan") },
  { name: "whatif", title: "What if", key: "f", rail: 13, role: "platform", load: () => import("./whatif") },
  { name: "alerts", title: "Alerts", key: "w", rail: 10, role: "platform", load: () => import("./alerts") },
  { name: "quality", title: "Quality", key: "q", rail: 11, role: "member", load: () => import("./quality") },
];
