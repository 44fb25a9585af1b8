// Tokens of a request: the ribbon, causes with their amounts, and the slowest.
import { Empty } from "../../components/basics";
import { Ribbon, causes } from "../../components/ribbon";
import { Table, type Column } from "../../components/table";
import { param } from "../../lib/address";
import { duration, number, percent } from "../../lib/format";
import type { RequestDetail } from "./types";

interface Token {
  index: number;
  at: number;
  seconds: number;
  cause: string;
}

export function Tokens({ detail }: { detail: RequestDetail }) {
  const { tokens } = detail.explanation;
  const chosen = param("token");
  if (!tokens.length) return <NoTokens detail={detail} />;
  const rows = tokens.map(([at, seconds, cause], index): Token => ({ index, at, seconds, cause }));
  const slowest = [...rows].sort((one, other) => other.seconds - one.seconds).slice(0, 20);
  const whole = rows.reduce((sum, { seconds }) => sum + seconds, 0);
  const columns: Column<Token>[] = [
    { key: "token", title: "Token", cell: ({ index }) => `${index + 1}`, value: ({ index }) => index, number: true },
    { key: "took", title: "Took", cell: ({ seconds }) => duration(seconds), value: ({ seconds }) => seconds, number: true },
    { key: "at", title: "Came at", cell: ({ at }) => duration(at), value: ({ at }) => at, number: true },
    { key: "cause", title: "Cause", cell: ({ cause }) => cause, value: ({ cause }) => cause, grow: true },
  ];
  return (
    <div class="stack">
      <div class="ribbon-big">
        <Ribbon cells={tokens} selected={chosen.value ? Number(chosen.value) - 1 : null} onSelect={(index) => (chosen.value = String(index + 1))} />
      </div>
      <div class="columns">
        <section class="section">
          <h2>Causes</h2>
          <table aria-label="Causes of tokens">
            <thead><tr><th scope="col">Cause</th><th scope="col" class="number">Tokens</th><th scope="col" class="number">Time</th><th scope="col" class="number">Share</th></tr></thead>
            <tbody>
              {causes(tokens).map(({ cause, tokens: many, seconds }) => (
                <tr key={cause}><td>{cause}</td><td class="number">{number(many)}</td><td class="number">{duration(seconds)}</td><td class="number">{percent(whole ? seconds / whole : 0)}</td></tr>
              ))}
            </tbody>
          </table>
        </section>
        <section class="section">
          <h2>The slowest</h2>
          <Table label="Slowest tokens" columns={columns} rows={slowest} rowKey={({ index }) => String(index)} main={false} sortName="tokens" empty={null} />
        </section>
      </div>
    </div>
  );
}

function NoTokens({ detail }: { detail: RequestDetail }) {
  if (!detail.request.output_tokens) return <Empty what="No token was given: the request ended before its answer began, or has no answer of tokens." />;
  if (!detail.with_steps) return <Empty what="When each token came is not known any more: engines remember their steps for an hour, and only slow requests are kept with theirs. Raise traces.kept.slowest to keep more." />;
  return <Empty what="When each token came is not known: the engine does not tell all the steps of this request." />;
}
