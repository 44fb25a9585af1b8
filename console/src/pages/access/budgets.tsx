// Budgets: made, changed and deleted.
import { useSignal } from "@preact/signals";
import { Empty, Loaded } from "../../components/basics";
import { Dialog, ask } from "../../components/dialog";
import { SelectField, TextField } from "../../components/form";
import { Table } from "../../components/table";
import { call } from "../../lib/api";
import { useRows } from "../../lib/resource";
import { session } from "../../lib/session";
import { BUDGET_COLUMNS, PERIODS, budgetOwner, type Budget } from "../usage/budgets";
import { ORGANIZATION, change } from "./change";

const PATH = `${ORGANIZATION}/budgets`;
const amount = (text: string): number | null => (text.trim() ? Number(text) : null);

export function BudgetsTab() {
  const budgets = useRows<Budget>(PATH);
  const edited = useSignal<Budget | null>(null);
  const remove = async (budget: Budget): Promise<void> => {
    const owner = budgetOwner(budget);
    const agreed = await ask({ title: `Delete the budget of ${owner}?`, text: `Nothing bounds what ${owner} spends ${PERIODS[budget.period]} then, unless another budget does.`, action: "Delete", danger: true });
    if (agreed && (await change(`The budget of ${owner} is deleted.`, () => call(`${PATH}/${encodeURIComponent(budget.id)}`, { method: "DELETE" })))) budgets.reload();
  };
  return (
    <>
      <NewBudget done={budgets.reload} />
      <Loaded of={budgets} what="The budgets">
        {(list) => (
          <Table label="Budgets" rows={list.data} rowKey={(row) => row.id} hasMore={list.has_more} loading={budgets.loading.value} onMore={budgets.more}
            empty={<Empty what="Your organisation has no budget. Make one above." />}
            columns={[
              ...BUDGET_COLUMNS,
              {
                key: "act", title: "Actions", line: 2, cell: (row) => (
                  <span class="row">
                    <button type="button" class="button small" aria-label={`Change the budget of ${budgetOwner(row)}`} onClick={() => (edited.value = row)}>Change</button>
                    <button type="button" class="button small" aria-label={`Delete the budget of ${budgetOwner(row)}`} onClick={() => void remove(row)}>Delete</button>
                  </span>
                ),
              },
            ]} />
        )}
      </Loaded>
      {edited.value && <EditBudget key={edited.value.id} budget={edited.value} close={() => (edited.value = null)} done={budgets.reload} />}
    </>
  );
}

function NewBudget({ done }: { done: () => void }) {
  const [project, unit, period, hard, soft] = [useSignal(""), useSignal("cost"), useSignal("month"), useSignal(""), useSignal("")];
  const make = async (event: Event): Promise<void> => {
    event.preventDefault();
    const body = {
      unit: unit.value, period: period.value, hard_limit: amount(hard.value), soft_limit: amount(soft.value),
      ...(project.value ? { project_id: project.value } : {}),
    };
    if (!(await change("The budget holds now.", () => call(PATH, { method: "POST", body })))) return;
    hard.value = soft.value = "";
    done();
  };
  const projects = (session.value?.projects ?? []).map(({ id, name }) => ({ value: id, label: name }));
  return (
    <form class="inline-form" noValidate onSubmit={(event) => void make(event)} aria-label="New budget">
      <SelectField label="New budget of" value={project.value} onChange={(value) => (project.value = value)}
        choices={[{ value: "", label: `all of ${session.value?.organization?.name ?? "the organisation"}` }, ...projects]} />
      <SelectField label="In" value={unit.value} onChange={(value) => (unit.value = value)} choices={[{ value: "cost", label: "money" }, { value: "tokens" }]} />
      <SelectField label="Period" value={period.value} onChange={(value) => (period.value = value)}
        choices={Object.entries(PERIODS).map(([value, label]) => ({ value, label }))} />
      <TextField label="Refuse requests from" type="number" value={hard.value} onChange={(value) => (hard.value = value)} placeholder="no hard limit" />
      <TextField label="Alert from" type="number" value={soft.value} onChange={(value) => (soft.value = value)} placeholder="no alert" />
      <button type="submit" class="button primary" disabled={!hard.value && !soft.value}>Make budget</button>
    </form>
  );
}

function EditBudget({ budget, close, done }: { budget: Budget; close: () => void; done: () => void }) {
  const [hard, soft] = [useSignal(budget.hard_limit?.toString() ?? ""), useSignal(budget.soft_limit?.toString() ?? "")];
  const save = async (event: Event): Promise<void> => {
    event.preventDefault();
    const set = (hard_limit: number | null, soft_limit: number | null): Promise<unknown> =>
      call(`${PATH}/${encodeURIComponent(budget.id)}`, { method: "POST", body: { hard_limit, soft_limit } });
    const undo = (): void => void change("The old limits hold again.", () => set(budget.hard_limit, budget.soft_limit)).then(done);
    if (!(await change("The new limits hold now.", () => set(amount(hard.value), amount(soft.value)), undo))) return;
    close();
    done();
  };
  return (
    <Dialog open title={`Budget of ${budgetOwner(budget)}, ${PERIODS[budget.period]}`} onClose={close}>
      <form class="stack" noValidate onSubmit={(event) => void save(event)}>
        <TextField label={`Refuse requests from (${budget.currency ?? "tokens"})`} type="number" value={hard.value} onChange={(value) => (hard.value = value)} hint="Empty: no hard limit. 0 allows nothing." autoFocus />
        <TextField label={`Alert from (${budget.currency ?? "tokens"})`} type="number" value={soft.value} onChange={(value) => (soft.value = value)} hint="Empty: no alert." />
        <div class="actions">
          <button type="button" class="button" onClick={close}>Cancel</button>
          <button type="submit" class="button primary">Save</button>
        </div>
      </form>
    </Dialog>
  );
}
