// The list of kept requests: search, filters, order, all in the address.
import { useEffect, useMemo } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Badge, Empty, Loaded, Time, Unknown } from "../../components/basics";
import { Filters, SelectFilter } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { PageHead } from "../../frame/head";
import { RANGES, RANGE_WORDS, address, href, model, param, range, setQuery } from "../../lib/address";
import { withQuery } from "../../lib/api";
import { exampleChat } from "../../lib/curl";
import { clock, dateTime, duration, money, number } from "../../lib/format";
import { useRows } from "../../lib/resource";
import { hasRole } from "../../lib/session";
import { CAUSE_WORDS, causeText } from "./causes";
import { FILTERS, parseSearch, type Filter } from "./search";
import type { RequestList, RequestRow } from "./types";
import { listSentence, modelOf, statusLevel, statusText } from "./words";

function columnsOf(currency: string): Column<RequestRow>[] {
  return [
    { key: "time", title: "Began", cell: (row) => <Time at={row.started_at} /> },
    { key: "endpoint", title: "Endpoint", cell: (row) => <span class="nowrap" title={row.endpoint}>{row.endpoint.replace("/v1/", "") || "batch line"}</span>, line: 0 },
    { key: "model", title: "Model", cell: (row) => <span class="nowrap">{modelOf(row) ?? <Unknown why="no model was reached" />}</span>, grow: true },
    { key: "project", title: "Project", cell: (row) => <span class="nowrap">{hasRole("platform") ? `${row.organization.name} / ${row.project.name}` : row.project.name}</span>, line: 2, grow: true },
    { key: "who", title: "Session or user", cell: (row) => row.session ?? row.user ?? "", line: 0 },
    { key: "status", title: "Status", cell: (row) => <Badge level={statusLevel(row)}>{statusText(row)}</Badge> },
    { key: "total", title: "Total", number: true, cell: (row) => duration(row.total_s) },
    { key: "ttft", title: "TTFT", number: true, cell: (row) => (row.ttft_s === null ? <Unknown why="no token was given" /> : <><span class="phone">TTFT </span>{duration(row.ttft_s)}</>), line: 2 },
    { key: "cause", title: "Mostly", cell: (row) => <span class="nowrap">{causeText(row) ?? <Unknown why={row.outcome === "refused" ? "it was refused" : "it was kept before causes were"} />}</span>, line: 2 },
    { key: "in", title: "In", number: true, cell: (row) => <span title={`${number(row.cached_tokens)} of them cached`}>{number(row.input_tokens)}</span>, line: 0 },
    { key: "out", title: "Out", number: true, cell: (row) => number(row.output_tokens), line: 0 },
    { key: "cost", title: "Cost", number: true, cell: (row) => money(row.cost, currency), line: 0 },
  ];
}

export function RequestListPage() {
  const query = address.value.query;
  const order = param("order", "newest").value;
  const filters = Object.keys(FILTERS).map((name) => [name as Filter, query.get(name) ?? ""] as const).filter(([, value]) => value);
  const drawn = useSignal(0);
  const [since, until] = [query.get("since"), query.get("until")];
  // One beginning for all pages of a list: it moves when the range changes or the list is loaded anew.
  const begin = useMemo(() => Math.floor(Date.now() / 1000) - RANGES[range.value], [range.value, drawn.value]);
  const asked = { ...Object.fromEntries(filters), order, since: since ?? begin, until };
  const rows = useRows<RequestRow>(withQuery("console/api/requests", asked));
  const data = rows.data.value as RequestList | undefined;
  const when = since ? `${dateTime(Number(since))} to ${until ? clock(Number(until)) : "now"}` : `the ${RANGE_WORDS[range.value]}`;
  const slower = filters.length === 1 && filters[0]?.[0] === "min_total" ? Number(filters[0][1]) : null;
  const sentence = data && (data.enabled ? listSentence({ rows: data.data, matching: data.matching, kept: data.kept, order, slower, when })
    : { text: "Requests are not kept: traces.kept.enabled is off in the configuration.", level: "warn" as const });
  return (
    <>
      <PageHead title="Requests" sentence={sentence} ranges={["15m", "1h", "6h", "24h", "7d", "30d"]}>
        <button type="button" class="button plain" onClick={() => (drawn.value += 1)}>Refresh</button>
      </PageHead>
      <SearchBox />
      <Chips filters={filters} since={since} until={until} />
      <Loaded of={rows} what="The list of requests">
        {(list) => (
          <Table label="Requests" columns={columnsOf((list as RequestList).currency)} rows={list.data} rowKey={(row) => row.id}
            rowHref={(row) => href(`requests/${row.id}`)} hasMore={Boolean(list.next)} loading={rows.loading.value} onMore={rows.more}
            csv={withQuery("console/api/requests.csv", asked)} empty={<NoRequests filtered={filters.length > 0} when={when} />} />
        )}
      </Loaded>
    </>
  );
}

function SearchBox() {
  const text = useSignal("");
  const asked = address.value.query.get("q") ?? "";
  useEffect(() => { // the search of the frame's top bar comes as it was typed
    const found = parseSearch(asked);
    if (asked && (Object.keys(found).length > 1 || found.q !== asked)) setQuery({ q: null, ...found });
  }, [asked]);
  const search = (event: Event): void => {
    event.preventDefault();
    setQuery(parseSearch(text.value), true);
    text.value = "";
  };
  return (
    <Filters>
      <form class="request-search" onSubmit={search}>
        <input type="search" aria-label="Add filters" placeholder="id, session:support-4, user:ada, key:, version:, endpoint:, cause:preempted, >2s"
          value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
        <button type="submit" class="button">Search</button>
      </form>
      <SelectFilter name="order" label="Order" all="newest first" choices={[{ value: "slowest", label: "slowest first" }]} />
      <SelectFilter name="status" label="Status" choices={choices("status", ["2xx", "4xx", "429", "5xx"], (value) => value)} />
      <SelectFilter name="outcome" label="Outcome" choices={["finished", "aborted", "refused", "failed"].map((value) => ({ value }))} />
      <SelectFilter name="reason" label="Kept as" all="kept for any reason" choices={["slow", "error", "refused", "ordinary"].map((value) => ({ value, label: `kept: ${value}` }))} />
      <SelectFilter name="cause" label="Cause" choices={choices("cause", Object.keys(CAUSE_WORDS), (value) => value)} />
      <SelectFilter name="min_total" label="Slower than" all="any duration"
        choices={choices("min_total", ["0.1", "0.5", "1", "2", "5", "10", "60"], (value) => `slower than ${duration(Number(value))}`)} />
      <SelectFilter name="min_ttft" label="TTFT above" all="any TTFT"
        choices={choices("min_ttft", ["0.1", "0.5", "1", "2", "5", "10"], (value) => `TTFT above ${duration(Number(value))}`)} />
    </Filters>
  );
}

/** Choices of a filter: the usual ones, and the one that was searched for. */
function choices(name: Filter, usual: string[], label: (value: string) => string): { value: string; label: string }[] {
  const chosen = address.value.query.get(name);
  return [...new Set([...(chosen ? [chosen] : []), ...usual])].map((value) => ({ value, label: label(value) }));
}

function Chips({ filters, since, until }: { filters: (readonly [Filter, string])[]; since: string | null; until: string | null }) {
  const all: [string, string, Record<string, null>][] = filters.map(([name, value]) => [
    FILTERS[name], name.startsWith("min_") ? duration(Number(value)) : value, { [name]: null }]);
  if (since ?? until) all.push(["time", `${since ? dateTime(Number(since)) : "beginning"} to ${until ? dateTime(Number(until)) : "now"}`, { since: null, until: null }]);
  if (!all.length) return null;
  const session = filters.find(([name]) => name === "session")?.[1];
  return (
    <p class="request-chips">
      {all.map(([name, value, changes]) => (
        <button key={name} type="button" class="chip" aria-label={`Remove the filter ${name} ${value}`} onClick={() => setQuery(changes, true)}>
          <span class="quiet">{name}</span> {value} <span aria-hidden="true">×</span>
        </button>
      ))}
      {all.length > 1 && (
        <button type="button" class="button plain small" onClick={() => setQuery(Object.assign({}, ...all.map(([, , changes]) => changes)), true)}>
          Clear all
        </button>
      )}
      {session && <a href={href(`sessions/${encodeURIComponent(session)}`)}>The session on one time axis</a>}
    </p>
  );
}

function NoRequests({ filtered, when }: { filtered: boolean; when: string }) {
  if (filtered) {
    return <Empty what={`No request of ${when} that was kept matches these filters. Of many ordinary requests only a sample is kept (traces.kept in the configuration); all that failed or were slow are. Take a filter away, or choose a longer range.`} />;
  }
  return <Empty what={`Requests of ${when} are listed here, a second after they are over. Send one:`} command={exampleChat(model.value)} />;
}
