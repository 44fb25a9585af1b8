// The request of an answer as code, to copy.
import { toast } from "../../components/toast";
import { root } from "../../lib/api";
import { session } from "../../lib/session";
import { before, type AnswerTurn, type Column } from "./conversation";
import { bodyOf } from "./request";
import { asCurl, asPython, asTest } from "./snippets";

async function copy(what: string, text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast(`Copied as ${what}.`);
  } catch {
    toast("The browser does not allow copying here (it needs https or localhost).", { kind: "bad" });
  }
}

/** Buttons that copy the request which this answer answers, with the settings that the column has now. */
export function CopyRequest({ column, turn }: { column: Column; turn: AnswerTurn }) {
  const body = () => bodyOf(column.settings, before(column.turns, turn.id));
  const server = { url: `${root}v1`, needsKey: !session.value?.open };
  const { temperature } = column.settings;
  const repeatable = turn.figures?.finish === "stop" && temperature.trim() !== "" && Number(temperature) === 0 && !turn.calls.length;
  const button = (name: string, make: () => string) => (
    <button type="button" class="copy" aria-label={`Copy the request as ${name}`} onClick={() => void copy(name, make())}>{name}</button>
  );
  return (
    <>
      {button("curl", () => asCurl(body(), server))}
      {button("Python", () => asPython(body(), server))}
      {button("Test", () => asTest(body(), server, repeatable ? turn.text : null))}
    </>
  );
}
