// People of the organisation and their roles.
import { useSignal } from "@preact/signals";
import { Empty, Loaded, Time } from "../../components/basics";
import { ask } from "../../components/dialog";
import { SelectField, TextField } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { href } from "../../lib/address";
import { call } from "../../lib/api";
import { useRows, type Rows } from "../../lib/resource";
import { ORGANIZATION, change } from "./change";

interface User {
  id: string;
  name: string;
  email: string | null;
  role: "owner" | "reader";
  added_at: number;
}

const PATH = `${ORGANIZATION}/users`;
const ROLES = [{ value: "reader", label: "member" }, { value: "owner", label: "administrator" }];
const roleName = (role: string): string => ROLES.find((each) => each.value === role)?.label ?? role;

export function UsersTab() {
  const users = useRows<User>(PATH);
  const [email, name, role] = [useSignal(""), useSignal(""), useSignal("reader")];
  const add = async (event: Event): Promise<void> => {
    event.preventDefault();
    const body = { email: email.value.trim(), role: role.value, ...(name.value.trim() ? { name: name.value.trim() } : {}) };
    if (!(await change(`${body.email} is added.`, () => call(PATH, { method: "POST", body })))) return;
    email.value = name.value = "";
    users.reload();
  };
  return (
    <>
      <form class="inline-form" onSubmit={(event) => void add(event)} aria-label="New user">
        <TextField label="E-mail of a new user" type="email" value={email.value} onChange={(value) => (email.value = value)} placeholder="mira@example.com" required />
        <TextField label="Name" value={name.value} onChange={(value) => (name.value = value)} />
        <SelectField label="Role" value={role.value} onChange={(value) => (role.value = value)} choices={ROLES} />
        <button type="submit" class="button primary">Add user</button>
      </form>
      <Loaded of={users} what="The users">
        {(list) => (
          <Table label="Users" columns={columns(users)} rows={list.data} rowKey={(row) => row.id}
            hasMore={list.has_more} loading={users.loading.value} onMore={users.more}
            empty={<Empty what="Nobody is added yet. People sign in by OIDC with the address that they are added with; programs need only keys." />} />
        )}
      </Loaded>
    </>
  );
}

function columns(users: Rows<User>): Column<User>[] {
  return [
    { key: "name", title: "Name", cell: (row) => row.name, value: (row) => row.name, grow: true },
    { key: "email", title: "E-mail", cell: (row) => row.email, value: (row) => row.email, line: 2 },
    {
      key: "role", title: "Role", value: (row) => row.role, cell: (row) => (
        <select aria-label={`Role of ${row.name}`} value={row.role} onChange={(event) => void setRole(row, event.currentTarget, users)}>
          {ROLES.map((each) => <option key={each.value} value={each.value}>{each.label}</option>)}
        </select>
      ),
    },
    { key: "added", title: "Added", cell: (row) => <Time at={row.added_at} />, value: (row) => row.added_at, line: 0 },
    {
      key: "act", title: "Actions", line: 2, cell: (row) => (
        <span class="row">
          <a class="button small" href={href("usage", { user: row.id, group: "key" })}>Usage</a>
          <button type="button" class="button small" aria-label={`Remove ${row.name}`} onClick={() => void remove(row, users)}>Remove</button>
        </span>
      ),
    },
  ];
}

async function setRole(user: User, choice: HTMLSelectElement, users: Rows<User>): Promise<void> {
  const role = choice.value;
  const set = (to: string): Promise<unknown> => call(`${PATH}/${encodeURIComponent(user.id)}`, { method: "POST", body: { role: to } });
  const undo = (): void => void change(`${user.name} is ${roleName(user.role)} again.`, () => set(user.role)).then(users.reload);
  if (!(await change(`${user.name} is ${roleName(role)} now; their keys follow.`, () => set(role), undo))) choice.value = user.role;
  users.reload();
}

async function remove(user: User, users: Rows<User>): Promise<void> {
  const agreed = await ask({ title: `Remove ${user.name}?`, text: `${user.email ?? user.name} leaves every project, and their keys are revoked. This cannot be undone.`, action: "Remove", danger: true });
  if (agreed && (await change(`${user.name} is removed.`, () => call(`${PATH}/${encodeURIComponent(user.id)}`, { method: "DELETE" })))) users.reload();
}
