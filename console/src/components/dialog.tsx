// Dialogs: the browser's own, which keeps the focus inside and gives it back.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { signal } from "@preact/signals";

/** Content over the page while `open`. Escape and a click outside close it. */
export function Dialog({ open, title, onClose, children }: {
  open: boolean;
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current;
    if (!dialog) return;
    if (open && !dialog.open) dialog.showModal();
    if (!open && dialog.open) dialog.close();
  }, [open]);
  return (
    <dialog
      ref={element}
      aria-label={title}
      onClose={onClose}
      onMouseDown={(event) => { if (event.target === element.current) onClose(); }}
    >
      {open && (
        <>
          <h2>{title}</h2>
          {children}
        </>
      )}
    </dialog>
  );
}

export interface Question {
  /** Names the thing: `Revoke key ci-deploy?` */
  title: string;
  /** What follows: `3 requests used it in the last minute.` */
  text?: string;
  /** The verb on the button: `Revoke`. */
  action: string;
  danger?: boolean;
}

const asked = signal<(Question & { answer: (yes: boolean) => void }) | null>(null);

/** Asks a plain question; true if it was agreed to. */
export function ask(question: Question): Promise<boolean> {
  asked.value?.answer(false);
  return new Promise((resolve) => {
    asked.value = { ...question, answer: resolve };
  });
}

export function QuestionHost() {
  const question = asked.value;
  const answer = (yes: boolean): void => {
    asked.value = null;
    question?.answer(yes);
  };
  return (
    <Dialog open={question !== null} title={question?.title ?? ""} onClose={() => answer(false)}>
      {question?.text && <p>{question.text}</p>}
      <div class="actions">
        <button type="button" class="button" onClick={() => answer(false)}>Cancel</button>
        <button type="button" class={`button ${question?.danger ? "danger" : "primary"}`} onClick={() => answer(true)}>
          {question?.action}
        </button>
      </div>
    </Dialog>
  );
}
