// Projects: made, renamed, archived; whether their prompts may be kept.
import { useSignal } from "@preact/signals";
import { Badge, Empty, Loaded, Time } from "../../components/basics";
import { ask } from "../../components/dialog";
import { TextField } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { href } from "../../lib/address";
import { call } from "../../lib/api";
import { useRows, type Rows } from "../../lib/resource";
import { loadSession } from "../../lib/session";
import { ORGANIZATION, change } from "./change";

interface Project {
  id: string;
  name: string;
  created_at: number;
  status: "active" | "archived";
  log_prompts: boolean;
}

const PATH = `${ORGANIZATION}/projects`;

export function ProjectsTab() {
  const projects = useRows<Project>(`${PATH}?include_archived=true`);
  const name = useSignal("");
  const changed = (): void => {
    projects.reload();
    void loadSession(); // the choices of projects elsewhere
  };
  const make = async (event: Event): Promise<void> => {
    event.preventDefault();
    const wanted = name.value.trim();
    if (!(await change(`Project ${wanted} is made.`, () => call(PATH, { method: "POST", body: { name: wanted } })))) return;
    name.value = "";
    changed();
  };
  return (
    <>
      <form class="inline-form" onSubmit={(event) => void make(event)} aria-label="New project">
        <TextField label="Name of a new project" value={name.value} onChange={(value) => (name.value = value)} placeholder="support-bot" required />
        <button type="submit" class="button primary">Make project</button>
      </form>
      <Loaded of={projects} what="The projects">
        {(list) => (
          <Table label="Projects" columns={columns(projects, changed)} rows={list.data} rowKey={(row) => row.id}
            rowHref={(row) => href("access", { tab: "keys", project: row.id })}
            hasMore={list.has_more} loading={projects.loading.value} onMore={projects.more} empty={<Empty what="No project yet. Make one above." />} />
        )}
      </Loaded>
    </>
  );
}

function columns(projects: Rows<Project>, changed: () => void): Column<Project>[] {
  return [
    { key: "name", title: "Project", cell: (row) => row.name, value: (row) => row.name, grow: true },
    { key: "status", title: "State", cell: (row) => <Badge level={row.status === "active" ? "good" : "quiet"}>{row.status}</Badge> },
    {
      key: "prompts", title: "Keeps prompts", line: 2, cell: (row) => (
        <label class="check above">
          <input type="checkbox" checked={row.log_prompts} disabled={row.status !== "active"} onChange={(event) => void keepPrompts(row, event.currentTarget, projects)} />
          sampled, sealed<span class="unseen"> prompts of {row.name}</span>
        </label>
      ),
    },
    { key: "created", title: "Made", cell: (row) => <Time at={row.created_at} />, value: (row) => row.created_at, line: 0 },
    {
      key: "act", title: "Actions", line: 2, cell: (row) => (
        <span class="above row">
          <a class="button small" href={href("usage", { project: row.id })}>Usage</a>
          <a class="button small" href={href("access", { tab: "limits", project: row.id })}>Limits</a>
          {row.status === "active" && <button type="button" class="button small" aria-label={`Archive ${row.name}`} onClick={() => void archive(row, changed)}>Archive</button>}
        </span>
      ),
    },
  ];
}

async function keepPrompts(project: Project, box: HTMLInputElement, projects: Rows<Project>): Promise<void> {
  const keep = box.checked;
  const set = (log_prompts: boolean): Promise<unknown> => call(`${PATH}/${encodeURIComponent(project.id)}`, { method: "POST", body: { log_prompts } });
  const undo = (): void => void set(!keep).then(projects.reload, projects.reload);
  const text = keep ? `Samples of ${project.name}'s prompts are kept from now on, sealed; administrators may read them.` : `No more prompts of ${project.name} are kept.`;
  if (!(await change(text, () => set(keep), undo))) box.checked = !keep;
  projects.reload();
}

async function archive(project: Project, changed: () => void): Promise<void> {
  const agreed = await ask({
    title: `Archive project ${project.name}?`, text: "Its keys stop working at once. What it stores stays. It cannot be taken back.", action: "Archive", danger: true,
  });
  if (agreed && (await change(`Project ${project.name} is archived.`, () => call(`${PATH}/${encodeURIComponent(project.id)}/archive`, { method: "POST" })))) changed();
}
