// A request beside a typical one of its shape, part by part.
import { Empty } from "../../components/basics";
import { Table, type Column } from "../../components/table";
import { stageClass } from "../../lib/stages";
import { count, duration } from "../../lib/format";
import type { RequestDetail } from "./types";

interface Pair {
  name: string;
  stage: string;
  seconds: number;
  other: number;
}

export function Compare({ detail }: { detail: RequestDetail }) {
  const { explanation, typical } = detail;
  if (!typical) {
    return <Empty what="No other request of about as many tokens, to the same model and endpoint, is kept yet. Once there are some, their median stands beside this one." />;
  }
  const stages = new Map(explanation.parts.map(({ name, stage }) => [name, stage]));
  const rows = explanation.beside.map(({ name, seconds, other_s }): Pair => ({ name, seconds, other: other_s, stage: stages.get(name) ?? "unexplained" }));
  const most = Math.max(...rows.map(({ seconds, other }) => Math.max(seconds, other)), 1e-9);
  const width = (seconds: number): Record<string, string> => ({ width: `${(100 * seconds) / most}%` });
  const columns: Column<Pair>[] = [
    { key: "part", title: "Part", cell: ({ name }) => name, value: ({ name }) => name, grow: true },
    { key: "bars", title: "This one above, the typical below", line: 0, cell: ({ stage, seconds, other }) => (
      <span class="pair" aria-hidden="true"><span class={`bar ${stageClass(stage)}`} style={width(seconds)} /><span class="bar other" style={width(other)} /></span>) },
    { key: "this", title: "This one", number: true, cell: ({ seconds }) => duration(seconds), value: ({ seconds }) => seconds },
    { key: "typical", title: "Typical", number: true, cell: ({ other }) => <><span class="phone">typical </span>{duration(other)}</>, value: ({ other }) => other },
    { key: "more", title: "Difference", number: true, cell: (row) => difference(row), value: ({ seconds, other }) => seconds - other },
  ];
  const more = explanation.total_s - typical.total_s;
  return (
    <>
      <p>
        {Math.abs(more) < 0.05 * typical.total_s ? "About as long as" : `${duration(Math.abs(more))} ${more > 0 ? "longer" : "shorter"} than`} the
        typical {duration(typical.total_s)} of {count(typical.requests, "request")} of its shape (same model and endpoint, about as many tokens).
      </p>
      <Table label="Parts beside those of a typical request" columns={columns} rows={rows} rowKey={({ name }) => name} main={false} sortName="compare" empty={null} />
    </>
  );
}

function difference({ seconds, other }: Pair): string {
  const more = seconds - other;
  return more === 0 ? "0 s" : `${more > 0 ? "+" : "−"}${duration(Math.abs(more))}`;
}
