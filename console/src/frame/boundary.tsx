// What a page shows when its code fails, and how its code is loaded.
import { Component, type ComponentChildren, type ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { ErrorBox } from "../components/basics";
import type { Page } from "../pages/registry";

const RELOADED = "kvarn-reloaded-at";

/** Loads the console again, once in a minute: after an upgrade the files of the old one are gone. False if it just did. */
function reloadOnce(): boolean {
  try {
    const last = Number(sessionStorage.getItem(RELOADED) ?? 0);
    if (Date.now() - last < 60_000) return false;
    sessionStorage.setItem(RELOADED, String(Date.now()));
  } catch {
    return false;
  }
  window.location.reload();
  return true;
}

class Boundary extends Component<{ children: ComponentChildren; what: string }, { error: Error | null }> {
  override state = { error: null as Error | null };

  static getDerivedStateFromError(error: unknown): { error: Error } {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  override componentDidCatch(error: unknown): void {
    console.error(error);
  }

  override render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    return (
      <ErrorBox
        error={new Error(`${error.name}: ${error.message}. Nothing was changed on the server. Load the page again; if it stays, report this text.`)}
        what={`${this.props.what} could not be drawn.`}
        retry={() => this.setState({ error: null })}
      />
    );
  }
}

const loaded = new Map<string, ComponentType>();

/** A page, loaded when it is first opened. */
export function LazyPage({ page }: { page: Page }) {
  const failed = useSignal<Error | null>(null);
  const drawn = useSignal(0);
  const Content = loaded.get(page.name);
  const load = (): void => {
    failed.value = null;
    page.load().then(
      (module) => {
        loaded.set(page.name, module.default);
        drawn.value += 1;
      },
      (error: unknown) => {
        if (!reloadOnce()) failed.value = error instanceof Error ? error : new Error(String(error));
      },
    );
  };
  useEffect(() => {
    if (!Content) load();
  }, [page.name]);
  void drawn.value;
  if (Content) return <Boundary key={page.name} what={page.title}><Content /></Boundary>;
  if (!failed.value) return <p class="quiet" aria-busy="true">Loading …</p>;
  return (
    <ErrorBox
      error={new Error("The server cannot be reached, or it serves another version of the console. Load the page again.")}
      what={`${page.title} could not be loaded.`}
      retry={load}
    />
  );
}
