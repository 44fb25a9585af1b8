// The frame around every page: top bar, rail, keys, and what is shown where there is no page.
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Dialog, QuestionHost } from "../components/dialog";
import { ErrorBox } from "../components/basics";
import { Menu } from "../components/menu";
import { Toasts } from "../components/toast";
import { address, go, href } from "../lib/address";
import { allShortcuts, useShortcuts } from "../lib/keys";
import { hasRole, loadSession, session, sessionError } from "../lib/session";
import { PAGES, type Page } from "../pages/registry";
import { LazyPage } from "./boundary";
import { PageHead } from "./head";
import { SignIn } from "./sign-in";
import { TopBar } from "./top";

const IN_THE_BAR = 4;

function railPages(): Page[] {
  return PAGES.filter((page) => page.rail !== undefined && hasRole(page.role)).sort((one, other) => (one.rail ?? 0) - (other.rail ?? 0));
}

const narrow = window.matchMedia("(max-width: 720px)");

/** Pages at the side; on a phone a bar of the first four and a menu with the others. */
function Rail() {
  const phone = useSignal(narrow.matches);
  useEffect(() => {
    const follow = (): void => {
      phone.value = narrow.matches;
    };
    narrow.addEventListener("change", follow);
    return () => narrow.removeEventListener("change", follow);
  }, []);
  const pages = railPages();
  const shown = phone.value && pages.length > IN_THE_BAR + 1 ? pages.slice(0, IN_THE_BAR) : pages;
  const others = pages.slice(shown.length);
  return (
    <nav class="rail" aria-label="Pages">
      {shown.map((page) => (
        <a key={page.name} href={href(page.name)} aria-current={page.name === address.value.page ? "page" : undefined}>
          {page.title}
          {page.key && <kbd aria-hidden="true">g {page.key}</kbd>}
        </a>
      ))}
      {others.length > 0 && (
        <Menu label="More" title="Pages" side="right" up
          items={others.map((page) => ({ label: page.title, to: href(page.name) }))} />
      )}
    </nav>
  );
}

/** Every key that works here. */
function KeysDialog() {
  const open = useSignal(false);
  useShortcuts([{ keys: "?", what: "this list", run: () => (open.value = true) }]);
  useEffect(() => {
    const show = (): void => {
      open.value = true;
    };
    window.addEventListener("kvarn-keys", show);
    return () => window.removeEventListener("kvarn-keys", show);
  }, []);
  return (
    <Dialog open={open.value} title="Keyboard shortcuts" onClose={() => (open.value = false)}>
      <dl class="facts">
        {allShortcuts().map((shortcut) => [
          <dt>{shortcut.keys.split(" ").map((key) => <><kbd>{key}</kbd>{" "}</>)}</dt>,
          <dd>{shortcut.what}</dd>,
        ])}
      </dl>
      <div class="actions">
        <button type="button" class="button" onClick={() => (open.value = false)}>Close</button>
      </div>
    </Dialog>
  );
}

function CurrentPage() {
  const name = address.value.page;
  const page = PAGES.find((one) => one.name === name);
  if (!page) return <NoPage title="No such page" why={`There is no page named "${name}" in this version of the console.`} />;
  if (!hasRole(page.role)) {
    return <NoPage title={page.title} why={`${page.title} needs the role of ${page.role === "usage" ? "a member" : "an administrator"}. Ask one of your organisation, or sign in with another key.`} />;
  }
  return <LazyPage page={page} />;
}

function NoPage({ title, why }: { title: string; why: string }) {
  return (
    <>
      <PageHead title={title} sentence={{ text: why }} />
      <a href={href("overview")}>Overview</a>
    </>
  );
}

function Signed() {
  const main = useRef<HTMLElement>(null);
  const page = address.value.page;
  const before = useRef(page);
  useEffect(() => {
    if (before.current === page) return;
    before.current = page;
    window.scrollTo(0, 0);
    main.current?.focus({ preventScroll: true });
  }, [page]);
  useShortcuts(
    railPages().flatMap(({ key, title, name }) => (key ? [{ keys: `g ${key}`, what: title, run: () => go(href(name)) }] : [])),
    [session.value],
  );
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to the page</a>
      <TopBar />
      <Rail />
      <main class="main" id="main" ref={main} tabIndex={-1}>
        <CurrentPage />
      </main>
      <KeysDialog />
    </div>
  );
}

export function Console() {
  useEffect(() => void loadSession(), []);
  const now = session.value;
  const error = sessionError.value;
  return (
    <>
      {now ? (now.signed_in || now.open ? <Signed /> : <SignIn />) : error && (
        <main class="sign-in">
          <ErrorBox error={error} what="The console could not be opened." retry={() => void loadSession()} />
        </main>
      )}
      <QuestionHost />
      <Toasts />
    </>
  );
}
