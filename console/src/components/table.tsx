// Tables: sort in the address, a row is a link, j and k move, cells can be copied, two-line rows on a phone.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { param } from "../lib/address";
import { root } from "../lib/api";
import { useShortcuts } from "../lib/keys";
import { ROWS_A_VIEW } from "../lib/resource";
import { CopyButton } from "./basics";

export interface Column<Row> {
  /** Name in the address when the table is sorted by it (`sort=-key`). */
  key: string;
  title: string;
  cell: (row: Row) => ComponentChildren;
  /** Right-aligned, for numbers. */
  number?: boolean;
  /** Its head sorts. Where rows are sorted by this table, `value` says by what. */
  sortable?: boolean;
  /** Value to sort by; only for tables whose rows are all here. */
  value?: (row: Row) => number | string | null | undefined;
  /** Text that a button in the cell copies. */
  copy?: (row: Row) => string;
  /** Line of the cell at 390 px: 1 (default), 2, or 0 for none. */
  line?: 0 | 1 | 2;
  /** Takes the room that is left in its line at 390 px. */
  grow?: boolean;
}

/** Rows in the order of `sort` (`key` or `-key`), by the column's `value`. Unknown values come last either way. */
export function sorted<Row>(rows: Row[], columns: Column<Row>[], sort: string): Row[] {
  const value = columns.find((column) => column.key === sort.replace(/^-/, ""))?.value;
  if (!value) return rows;
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
    if (b === null || b === undefined) return -1;
    return sign * (typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b)) : a - b);
  });
}

/** The next order when a head is pressed: largest first, smallest first, none. */
export function nextSort(now: string, key: string): string {
  return now === `-${key}` ? key : now === key ? "" : `-${key}`;
}

interface TableProps<Row> {
  /** What the table lists, for readers that do not see it. */
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  rowKey: (row: Row) => string;
  /** Where a row leads: an address made by `href`. */
  rowHref?: (row: Row) => string;
  /** Parameter of the address with the order; two tables of a page need two names. */
  sortName?: string;
  hasMore?: boolean;
  loading?: boolean;
  onMore?: () => void;
  /** Path of the server's CSV export, `console/api/requests.csv?…`. */
  csv?: string;
  /** Shown instead of a table without rows. */
  empty: ComponentChildren;
  /** The table answers j and k; the page's main table only. */
  main?: boolean;
}

export function Table<Row>(props: TableProps<Row>) {
  const { label, columns, rows, rowKey, rowHref, sortName = "sort", hasMore, loading, onMore, csv, empty, main = true } = props;
  const body = useRef<HTMLTableSectionElement>(null);
  const sort = param(sortName);
  const move = (step: number): void => {
    const links = [...(body.current?.querySelectorAll<HTMLElement>("a.row-link") ?? [])];
    const at = links.findIndex((link) => link.closest("tr")?.contains(document.activeElement));
    const next = links[at < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + step))];
    next?.focus();
    next?.closest("tr")?.scrollIntoView({ block: "nearest" });
  };
  useShortcuts(
    main && rowHref
      ? [
          { keys: "j", what: "next row (Enter opens it)", run: () => move(1) },
          { keys: "k", what: "row before", run: () => move(-1) },
        ]
      : [],
    [main],
  );

  if (!rows.length && !loading) return <>{empty}</>;
  return (
    <div>
      <div class="table-wrap">
        <table class="two-lines" role="table" aria-label={label} aria-busy={loading}>
          <thead>
            <tr role="row">
              {columns.map((column) => <Head key={column.key} column={column} sort={sort} />)}
            </tr>
          </thead>
          <tbody ref={body}>
            {sorted(rows, columns, sort.value).map((row) => (
              <tr role="row" key={rowKey(row)} class={rowHref ? "link" : undefined}>
                {columns.map((column, index) => (
                  <td role="cell" key={column.key} class={cellClass(column)}>
                    {index === 0 && rowHref ? <a class="row-link" href={rowHref(row)}>{column.cell(row)}</a> : column.cell(row)}
                    {column.copy && <CopyButton text={column.copy(row)} />}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="table-foot">
        <span>
          {rows.length} {rows.length === 1 ? "row" : "rows"}
          {hasMore ? ", and more on the server" : ""}
        </span>
        <span class="row">
          {csv && <a href={new URL(csv, root).href} download>Export CSV</a>}
          {hasMore && onMore && (
            <button type="button" class="button small" disabled={loading} onClick={onMore}>
              {loading ? "Loading …" : `Next ${ROWS_A_VIEW}`}
            </button>
          )}
        </span>
      </div>
    </div>
  );
}

function cellClass<Row>({ number, line, grow }: Column<Row>): string | undefined {
  const names = [number && "number", line !== undefined && line !== 1 && `line-${line}`, grow && "grow"].filter(Boolean);
  return names.join(" ") || undefined;
}

function Head<Row>({ column, sort }: { column: Column<Row>; sort: { value: string } }) {
  const order = sort.value === column.key ? "ascending" : sort.value === `-${column.key}` ? "descending" : undefined;
  const arrow = order === "ascending" ? " ↑" : order === "descending" ? " ↓" : "";
  return (
    <th role="columnheader" scope="col" class={cellClass(column)} aria-sort={order}>
      {column.sortable || column.value ? (
        <button type="button" onClick={() => (sort.value = nextSort(sort.value, column.key))}>
          {column.title}{arrow}
        </button>
      ) : column.title}
    </th>
  );
}
