// A kept prompt becomes an item of an evaluation set, with what should have been answered.
import { useSignal } from "@preact/signals";
import { href } from "../lib/address";
import { call } from "../lib/api";
import { count } from "../lib/format";
import { asApiError } from "../lib/resource";
import { Dialog } from "./dialog";
import { TextField } from "./form";
import { toast } from "./toast";

interface Added {
  version: number;
  num_items: number;
}

/** `path`: takes the set and the answer; `answer`: what was answered, to begin with. */
export function AddToSet({ path, answer }: { path: string; answer: string }) {
  const open = useSignal(false);
  const [set, expected, problem, running] = [useSignal(""), useSignal(answer), useSignal(""), useSignal(false)];
  const add = async (event: Event): Promise<void> => {
    event.preventDefault();
    running.value = true;
    try {
      const made = await call<Added>(path, { method: "POST", body: { set: set.value.trim(), expected: expected.value } });
      open.value = false;
      problem.value = "";
      toast(`Added to ${set.value.trim()}: version ${made.version} with ${count(made.num_items, "item")}.`);
    } catch (failure) {
      problem.value = asApiError(failure).message;
    }
    running.value = false;
  };
  const show = (): void => {
    expected.value = answer;
    problem.value = "";
    open.value = true;
  };
  return (
    <>
      <button type="button" class="button small" onClick={show}>Add to an evaluation set</button>
      {open.value && (
        <Dialog open title="Add to an evaluation set" onClose={() => (open.value = false)}>
          <form class="stack" onSubmit={(event) => void add(event)}>
            <TextField label="Set" value={set.value} onChange={(value) => (set.value = value)} placeholder="support" required autoFocus
              hint={<>Of the request's project; one that is not there is made. <a href={href("quality")}>Scores of sets</a></>} />
            <TextField label="What should have been answered" value={expected.value} onChange={(value) => (expected.value = value)} rows={5} required problem={problem.value || null}
              hint="An answer passes where it is the same but for white space and upper case. Whoever may see the set reads the prompt from then on." />
            <div class="actions">
              <button type="button" class="button" onClick={() => (open.value = false)}>Cancel</button>
              <button type="submit" class="button primary" disabled={running.value}>Add</button>
            </div>
          </form>
        </Dialog>
      )}
    </>
  );
}
