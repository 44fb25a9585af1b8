// Short messages about what has been done, with a way back where there is one.
import { signal } from "@preact/signals";

interface Toast {
  id: number;
  text: string;
  kind: "good" | "bad";
  undo?: () => void;
}

const toasts = signal<Toast[]>([]);
let last = 0;

function drop(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

/** Shows a message; one with `undo` or of kind `bad` stays 10 s, others 4 s. */
export function toast(text: string, { kind = "good", undo }: { kind?: Toast["kind"]; undo?: () => void } = {}): void {
  const id = ++last;
  toasts.value = [...toasts.value.slice(-3), { id, text, kind, ...(undo ? { undo } : {}) }];
  setTimeout(() => drop(id), undo || kind === "bad" ? 10_000 : 4_000);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((item) => (
        <div class="toast" key={item.id}>
          <span>{item.text}</span>
          {item.undo && (
            <button type="button" onClick={() => { drop(item.id); item.undo?.(); }}>
              Undo
            </button>
          )}
          <button type="button" aria-label="Dismiss" onClick={() => drop(item.id)}>×</button>
        </div>
      ))}
    </div>
  );
}
