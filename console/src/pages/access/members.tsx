// People of a project: added, their role, taken out.
import { useSignal } from "@preact/signals";
import { Empty, Loaded, Time } from "../../components/basics";
import { ask } from "../../components/dialog";
import { Filters, SelectField, TextField } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { href } from "../../lib/address";
import { call } from "../../lib/api";
import { useRows, type Rows } from "../../lib/resource";
import { ORGANIZATION, change } from "./change";
import { ProjectChoice, projectId, projectName } from "./project";

interface Member {
  id: string;
  name: string;
  email: string | null;
  role: "owner" | "member";
  added_at: number;
}

const ROLES = [{ value: "member", label: "member" }, { value: "owner", label: "owner" }];

export function MembersTab() {
  const project = projectId();
  const path = `${ORGANIZATION}/projects/${encodeURIComponent(project)}/users`;
  const members = useRows<Member>(path);
  const [email, role] = [useSignal(""), useSignal("member")];
  const add = async (event: Event): Promise<void> => {
    event.preventDefault();
    const body = { email: email.value.trim(), role: role.value };
    if (!(await change(`${body.email} is a member of ${projectName(project)}.`, () => call(path, { method: "POST", body })))) return;
    email.value = "";
    members.reload();
  };
  return (
    <>
      <Filters><ProjectChoice /></Filters>
      <form class="inline-form" onSubmit={(event) => void add(event)} aria-label="New member">
        <TextField label="E-mail of a user" type="email" value={email.value} onChange={(value) => (email.value = value)} placeholder="mira@example.com" required />
        <SelectField label="Role" value={role.value} onChange={(value) => (role.value = value)} choices={ROLES} />
        <button type="submit" class="button primary">Add to {projectName(project)}</button>
      </form>
      <Loaded of={members} what="The members">
        {(list) => (
          <Table label="Members" columns={columns(path, project, members)} rows={list.data} rowKey={(row) => row.id}
            hasMore={list.has_more} loading={members.loading.value} onMore={members.more}
            empty={<Empty what={`${projectName(project)} has no members. Users of the organisation are added above; programs need only keys.`}><a class="button small" href={href("access", { tab: "users" })}>Users</a></Empty>} />
        )}
      </Loaded>
    </>
  );
}

function columns(path: string, project: string, members: Rows<Member>): Column<Member>[] {
  const of = (member: Member): string => `${path}/${encodeURIComponent(member.id)}`;
  const setRole = async (member: Member, choice: HTMLSelectElement): Promise<void> => {
    const set = (to: string): Promise<unknown> => call(of(member), { method: "POST", body: { role: to } });
    const undo = (): void => void change(`${member.name} is ${member.role} again.`, () => set(member.role)).then(members.reload);
    if (!(await change(`${member.name} is ${choice.value} now.`, () => set(choice.value), undo))) choice.value = member.role;
    members.reload();
  };
  const remove = async (member: Member): Promise<void> => {
    const text = `The keys that they have in ${projectName(project)} are revoked. This cannot be undone.`;
    const agreed = await ask({ title: `Take ${member.name} out of ${projectName(project)}?`, text, action: "Take out", danger: true });
    if (agreed && (await change(`${member.name} is no member any more.`, () => call(of(member), { method: "DELETE" })))) members.reload();
  };
  return [
    { key: "name", title: "Name", cell: (row) => row.name, value: (row) => row.name, grow: true },
    { key: "email", title: "E-mail", cell: (row) => row.email ?? "-", value: (row) => row.email, line: 2 },
    {
      key: "role", title: "Role", value: (row) => row.role, cell: (row) => (
        <select aria-label={`Role of ${row.name}`} value={row.role} onChange={(event) => void setRole(row, event.currentTarget)}>
          {ROLES.map((each) => <option key={each.value} value={each.value}>{each.label}</option>)}
        </select>
      ),
    },
    { key: "added", title: "Added", cell: (row) => <Time at={row.added_at} />, value: (row) => row.added_at, line: 0 },
    { key: "act", title: "Actions", line: 2, cell: (row) => <button type="button" class="button small" aria-label={`Take ${row.name} out`} onClick={() => void remove(row)}>Take out</button> },
  ];
}
