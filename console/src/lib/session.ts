// Who is signed in, and the ways to sign in and out.
import { belowRoot } from "./address";
import { effect, signal } from "@preact/signals";
import { ApiError, call, root, signedOut } from "./api";
import { forgetChats } from "./kept-chats";
import { asApiError } from "./resource";

export interface Named {
  id: string;
  name: string;
}

/** Answer of `GET /console/api/session`. */
export interface Session {
  signed_in: boolean;
  /** No key is needed: a server on loopback without authentication. */
  open: boolean;
  features: { oidc?: { name: string; path: string } | null };
  name?: string | null;
  /** `admin`, `member` or `service`. */
  role?: string | null;
  /** Admin of the default organisation: sees every tenant. */
  is_platform_admin?: boolean;
  organization?: Named | null;
  /** The project that what they ask of models belongs to. */
  project?: Named | null;
  projects?: Named[] | null;
  /** UNIX seconds. */
  expires?: number | null;
}

export const session = signal<Session | null>(null);
export const sessionError = signal<ApiError | null>(null);

export async function loadSession(): Promise<void> {
  try {
    session.value = await call<Session>("console/api/session");
    sessionError.value = null;
  } catch (failure) {
    const error = asApiError(failure);
    if (error.status === 401) session.value = { signed_in: false, open: false, features: {} };
    else sessionError.value = error;
  }
}

export async function signIn(key: string): Promise<void> {
  await call("console/api/session", { method: "POST", body: { key } });
  await loadSession();
}

/** Signs out; whoever sits here next finds nothing of this person. */
export async function signOut(): Promise<void> {
  await call("console/api/session", { method: "DELETE" });
  try {
    forgetChats(localStorage);
  } catch {
    // the browser's storage is switched off: it has none
  }
  window.location.reload(); // what pages have in memory goes, too
}

/** Address that begins a sign-in by OIDC and comes back to this view; null where the server offers none. */
export function oidcAddress(of: Session): string | null {
  const { oidc } = of.features;
  if (!oidc) return null;
  const begin = new URL(oidc.path, root);
  begin.searchParams.set("next", belowRoot(window.location) ?? "");
  return begin.href;
}

/** `usage`: sees sums of usage, which a program's key does not. */
export type Role = "member" | "usage" | "admin" | "platform";

/** Whether the signed-in person may use what needs `role`. The server decides again. */
export function hasRole(role: Role): boolean {
  const now = session.value;
  if (!now) return false;
  if (role === "usage") return now.open || now.role !== "service";
  if (role === "member" || now.open || now.is_platform_admin) return true;
  return role === "admin" && now.role === "admin";
}

/** A mounted console asks again who is signed in whenever a call is answered by 401. */
export function followSession(): void {
  effect(() => {
    if (signedOut.value > 0) void loadSession();
  });
}
