// Top bar: which model, the search, which tenant, who is signed in, the theme.
import { useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Menu, type MenuItem } from "../components/menu";
import { toast } from "../components/toast";
import { address, formatAddress, go, href, model, withChanges } from "../lib/address";
import { call, root } from "../lib/api";
import { useShortcuts } from "../lib/keys";
import { asApiError } from "../lib/resource";
import { session, signOut } from "../lib/session";
import { setTheme, theme, type Theme } from "../lib/theme";
import type { Models } from "../pages/models/types";
import { PAGES } from "../pages/registry";

/** Models of the server, asked for when the menu is first opened. */
function ModelMenu() {
  const models = useSignal<string[] | null>(null);
  const load = async (): Promise<void> => {
    if (models.value) return;
    models.value = [];
    try {
      models.value = (await call<Models>("console/api/models")).models.map(({ name }) => name);
    } catch (failure) {
      models.value = null;
      toast(asApiError(failure).message, { kind: "bad" });
    }
  };
  const items: MenuItem[] = [
    { label: "All models", checked: !model.value, run: () => (model.value = "") },
    ...(models.value ?? []).map((id) => ({ label: id, checked: id === model.value, run: () => (model.value = id) })),
  ];
  return (
    <span onPointerEnter={load} onFocusCapture={load}>
      <Menu label={model.value || "all models"} title="Model" items={items} />
    </span>
  );
}

function Search() {
  const input = useRef<HTMLInputElement>(null);
  useShortcuts([{ keys: "/", what: "search", run: () => input.current?.select() }]);
  const submit = (event: Event): void => {
    event.preventDefault();
    const text = input.current?.value.trim();
    if (text) go(href("requests", { q: text }));
    input.current?.blur();
  };
  return (
    <form class="search" role="search" onSubmit={submit}>
      <input ref={input} type="search" aria-label="Search requests" placeholder="search requests, keys, models …"
        onKeyDown={(event) => { if (event.key === "Escape") event.currentTarget.blur(); }} />
      <kbd aria-hidden="true">/</kbd>
    </form>
  );
}

function UserMenu() {
  const now = session.value;
  const themes: [Theme, string][] = [["system", "As the system"], ["light", "Light"], ["dark", "Dark"]];
  const leave = async (): Promise<void> => {
    try {
      await signOut();
    } catch (failure) {
      toast(asApiError(failure).message, { kind: "bad" });
    }
  };
  const items: MenuItem[] = [
    { kind: "heading", label: now?.open ? "This server is open: no key is needed" : [now?.name, now?.role].filter(Boolean).join(" · ") },
    { kind: "line" },
    { kind: "heading", label: "Theme" },
    ...themes.map(([value, label]) => ({ label, checked: theme.value === value, run: () => setTheme(value) })),
    { kind: "line" },
    { label: "Documentation", run: () => void window.open(`${root}docs/`, "_blank", "noopener") },
    { label: "Keyboard shortcuts", note: "?", run: () => window.dispatchEvent(new CustomEvent("kvarn-keys")) },
    ...(now?.open ? [] : [{ label: "Sign out", run: () => void leave() }]),
  ];
  return <Menu label={now?.open ? "open" : (now?.name ?? "you")} title="You" side="right" items={items} />;
}

/** Pages that show what is of one project. */
const OF_PROJECTS = ["requests", "tools", "usage", "access"];

/** The organisation; where a page can show one of its projects alone, a choice of these. */
function TenantMenu() {
  const now = session.value;
  const organization = now?.organization?.name ?? "";
  const projects = now?.projects ?? [];
  const { page, query } = address.value;
  const chosen = OF_PROJECTS.includes(page) ? query.get("project") : null;
  const label = projects.find((project) => project.id === chosen)?.name ?? organization;
  if (!label || now?.open) return null;
  if (projects.length < 2 || !OF_PROJECTS.includes(page)) return <span class="quiet wide cut">{label}</span>;
  const to = (id: string | null): (() => void) => () => {
    go(formatAddress(page, [], withChanges(query, { project: id })));
  };
  return (
    <span class="wide">
      <Menu label={label} title="Tenant" side="right" items={[
        { label: organization, note: "all projects", checked: !chosen, run: to(null) },
        ...projects.map((project) => ({ label: project.name, checked: project.id === chosen, run: to(project.id) })),
      ]} />
    </span>
  );
}

export function TopBar() {
  return (
    <header class="top">
      <a class="brand" href={href(PAGES[0]?.name ?? "overview")}>Kvarn</a>
      <ModelMenu />
      <Search />
      <TenantMenu />
      <UserMenu />
    </header>
  );
}
