// Budgets and how much of each is used in its present period.
import { Badge, Empty, Loaded, type Level } from "../../components/basics";
import { Table, type Column } from "../../components/table";
import { href } from "../../lib/address";
import { percent } from "../../lib/format";
import { useRows } from "../../lib/resource";
import { session } from "../../lib/session";
import { budgetText } from "./text";
import "../usage.css";

/** A row of `GET /v1/organization/budgets`. */
export interface Budget {
  id: string;
  created_at: number;
  project_id: string | null;
  unit: "cost" | "tokens";
  currency: string | null;
  period: "day" | "month" | "total";
  hard_limit: number | null;
  soft_limit: number | null;
  spent: number;
}

export const PERIODS: Record<Budget["period"], string> = { day: "a day (UTC)", month: "a month (UTC)", total: "in all" };

export function budgetOwner(budget: Budget): string {
  if (budget.project_id === null) return session.value?.organization?.name ?? "organisation";
  return session.value?.projects?.find((project) => project.id === budget.project_id)?.name ?? budget.project_id;
}

/** State of a budget in words. */
function budgetState({ spent, hard_limit, soft_limit }: Budget): { level: Level; text: string } {
  if (hard_limit !== null && spent >= hard_limit) return { level: "bad", text: "used up: requests are refused" };
  if (soft_limit !== null && spent >= soft_limit) return { level: "warn", text: "over the soft limit" };
  return { level: "good", text: "within" };
}

export const BUDGET_COLUMNS: Column<Budget>[] = [
  { key: "of", title: "Budget of", cell: budgetOwner, value: budgetOwner, grow: true },
  { key: "period", title: "Period", cell: (row) => PERIODS[row.period], line: 2 },
  {
    key: "used", title: "Used", line: 2, value: (row) => row.spent / (row.hard_limit || row.soft_limit || 1),
    cell: (row) => {
      const limit = row.hard_limit ?? row.soft_limit;
      return (
        <>
          {limit ? <progress class="budget-bar" max={limit} value={Math.min(row.spent, limit)} aria-label={`${percent(row.spent / limit)} used`} /> : null}{" "}
          {budgetText(row.spent, row.hard_limit, row.unit === "cost" ? row.currency : null)}
        </>
      );
    },
  },
  { key: "state", title: "State", cell: (row) => { const { level, text } = budgetState(row); return <Badge level={level}>{text}</Badge>; } },
];

export function Budgets() {
  const budgets = useRows<Budget>("v1/organization/budgets");
  return (
    <section class="section">
      <h2>Budgets</h2>
      <Loaded of={budgets} what="The budgets">
        {(list) => (
          <Table label="Budgets" columns={BUDGET_COLUMNS} rows={list.data} rowKey={(row) => row.id} main={false} sortName="budgets"
            rowHref={(row) => href("usage", row.project_id ? { project: row.project_id, range: row.period === "day" ? "24h" : "30d" } : { range: row.period === "day" ? "24h" : "30d" })}
            hasMore={list.has_more} loading={budgets.loading.value} onMore={budgets.more}
            empty={<Empty what="Your organisation has no budget."><a class="button small" href={href("access", { tab: "budgets" })}>Set a budget</a></Empty>} />
        )}
      </Loaded>
    </section>
  );
}
