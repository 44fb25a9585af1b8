// Usage: tokens and cost over time and by whom, and how much of each budget is used.
import { Empty, Loaded } from "../components/basics";
import { Chart } from "../components/chart";
import { Filters } from "../components/form";
import { Table, type Column } from "../components/table";
import { PageHead } from "../frame/head";
import { RANGE_WORDS, address, model, param, shownRange, type Query, type Range } from "../lib/address";
import { root, withQuery } from "../lib/api";
import { exampleChat } from "../lib/curl";
import { download } from "../lib/download";
import { csv, dateTime, money, number } from "../lib/format";
import { useResource } from "../lib/resource";
import { hasRole, session } from "../lib/session";
import { Budgets } from "./usage/budgets";
import {
  GROUPS, GROUP_NAMES, isPriced, nameOf, spenderLink, tokens, total, usageSentence, widthText,
  type Group, type Usage, type UsageAmounts, type UsageBucket, type UsageRow,
} from "./usage/text";
import "./usage.css";

const SHOWN: Range[] = ["1h", "6h", "24h", "7d", "30d"];
/** Filters that the address may have besides the model. */
const FILTERS = ["organization", "project", "key", "user"] as const;

export default function UsagePage() {
  const shown = shownRange(SHOWN);
  const asked = param("group", "project").value;
  const byTime = asked === "time";
  const group: Group = GROUPS.find((each) => each === asked) ?? "project";
  const filters = Object.fromEntries(FILTERS.map((name) => [name, address.value.query.get(name)]));
  const query = { range: shown, group, model: model.value, ...filters };
  const usage = useResource<Usage>(withQuery("console/api/usage", query));
  const data = usage.data.value;
  return (
    <>
      <PageHead title="Usage" ranges={SHOWN}
        sentence={data && { text: usageSentence(data, RANGE_WORDS[shown]), to: data.rows[0] ? spenderLink(data.rows[0], data.group, filters) : null }} />
      <Filters>
        <Grouping />
        {FILTERS.map((name) => filters[name] && (
          <Chosen key={name} name={name} label={`${GROUP_NAMES[name]}: ${data?.names[filters[name]] ?? filters[name]}`} />
        ))}
        {model.value && <Chosen name="model" label={`model: ${model.value}`} />}
      </Filters>
      <div class="stack">
        <Loaded of={usage} what="The usage">{(loaded) => <Content usage={loaded} byTime={byTime} filters={filters} asked={query} />}</Loaded>
        {hasRole("admin") && <Budgets />}
      </div>
    </>
  );
}

function Grouping() {
  const group = param("group", "project");
  const groups = GROUPS.filter((each) => each !== "organization" || hasRole("platform"));
  return (
    <select aria-label="Group by" value={group.value} onChange={(event) => (group.value = event.currentTarget.value)}>
      {groups.map((each) => <option key={each} value={each}>by {GROUP_NAMES[each]}</option>)}
      <option value="time">by time</option>
    </select>
  );
}

/** A filter that is on; pressing it takes it away. */
function Chosen({ name, label }: { name: string; label: string }) {
  return (
    <button type="button" class="button small" onClick={() => (param(name).value = "")}>
      {label} <span aria-hidden="true">×</span><span class="unseen">, take this filter away</span>
    </button>
  );
}

function amounts<Row extends UsageAmounts>(currency: (row: Row) => string, priced: boolean): Column<Row>[] {
  return [
    { key: "requests", title: "Requests", number: true, cell: (row) => number(row.requests), value: (row) => row.requests, line: 0 },
    { key: "input", title: "Tokens in", number: true, cell: (row) => <>{number(row.input_tokens)}<span class="on-phone"> in</span></>, value: (row) => row.input_tokens, line: 2 },
    { key: "cached", title: "of them cached", number: true, cell: (row) => number(row.cached_tokens), value: (row) => row.cached_tokens, line: 0 },
    { key: "output", title: "Tokens out", number: true, cell: (row) => <>{number(row.output_tokens)}<span class="on-phone"> out</span></>, value: (row) => row.output_tokens, line: 2 },
    ...(priced ? [{ key: "cost", title: "Cost", number: true, cell: (row: Row) => money(row.cost, currency(row)), value: (row: Row) => row.cost }] : []),
  ];
}

function Content({ usage, byTime, filters, asked }: { usage: Usage; byTime: boolean; filters: Query; asked: Query }) {
  const priced = isPriced(usage);
  const times = usage.buckets.map((bucket) => bucket.at);
  const span: [number, number] = [usage.start, usage.end];
  const empty = <Empty what="Tokens and cost are listed here once requests have come in this range." command={exampleChat(model.value)} />;
  if (!usage.rows.length) return empty;
  return (
    <div class="stack">
      <section class="charts usage-charts" aria-label="Charts">
        <Chart title={`Tokens ${widthText(usage.width_s)}`} times={times} span={span} series={usage.lines.map((line) => ({ name: line.name, values: line.tokens }))} />
        {priced && <Chart title={`Cost ${widthText(usage.width_s)}`} unit={usage.currency.toUpperCase()} times={times} span={span} series={usage.lines.map((line) => ({ name: line.name, values: line.cost }))} />}
      </section>
      <section class="section">
        <header class="row spread">
          <h2>{byTime ? `By ${usage.width_s === 86400 ? "day (UTC)" : "time"}` : `By ${GROUP_NAMES[usage.group]}`}</h2>
          <span class="row">
            {!byTime && <a class="button small" href={new URL(withQuery("console/api/usage.csv", asked), root).href} download>Export by day</a>}
            <button type="button" class="button small" onClick={() => exportCsv(usage, byTime)}>Export CSV</button>
          </span>
        </header>
        {byTime ? (
          <Table<UsageBucket> label="Usage by time" rows={[...usage.buckets].reverse()} rowKey={(row) => String(row.at)} empty={empty}
            columns={[
              { key: "time", title: "From", cell: (row) => dateTime(row.at).slice(0, 16), value: (row) => row.at, grow: true },
              ...amounts<UsageBucket>(() => usage.currency, priced),
            ]} />
        ) : (
          <Table<UsageRow> label={`Usage by ${GROUP_NAMES[usage.group]}`} rows={usage.rows} rowKey={(row) => `${row.id} ${row.currency}`} empty={empty}
            rowHref={(row) => spenderLink(row, usage.group, filters)}
            columns={[
              {
                key: "name", title: GROUP_NAMES[usage.group].replace(/^./, (letter) => letter.toUpperCase()), grow: true, value: (row) => nameOf(row, usage.group),
                cell: (row) => <>{nameOf(row, usage.group)}{usage.group === "key" && row.detail && <> <code class="quiet">{row.detail}</code></>}</>,
              },
              ...amounts<UsageRow>((row) => row.currency, priced),
            ]} />
        )}
        {usage.more_rows > 0 && !byTime && <p class="quiet">{number(usage.more_rows)} smaller ones are not listed; choose a filter to see them. The charts count them.</p>}
        <Sum of={total(usage.buckets)} usage={usage} priced={priced} />
      </section>
    </div>
  );
}

function Sum({ of, usage, priced }: { of: UsageAmounts; usage: Usage; priced: boolean }) {
  return (
    <p class="quiet">
      In all {number(of.requests)} requests, {number(tokens(of))} tokens
      {priced ? `, ${money(of.cost, usage.currency)}` : ". Nothing has a price: set prices in metering.prices to see costs"}.
      {session.value?.is_platform_admin ? "" : " Only use of what you may see is counted."}
    </p>
  );
}

function exportCsv(usage: Usage, byTime: boolean): void {
  const head = ["requests", "input_tokens", "cached_tokens", "output_tokens", "cost", "currency"];
  const cells = (row: UsageAmounts, currency: string): (string | number)[] =>
    [row.requests, row.input_tokens, row.cached_tokens, row.output_tokens, row.cost, currency];
  const text = byTime
    ? csv(["from", ...head], usage.buckets.map((row) => [new Date(row.at * 1000).toISOString(), ...cells(row, usage.currency)]))
    : csv(["id", "name", "of", ...head], usage.rows.map((row) => [row.id, row.name, row.detail, ...cells(row, row.currency)]));
  download(`usage-by-${byTime ? "time" : GROUP_NAMES[usage.group]}.csv`, text);
}
