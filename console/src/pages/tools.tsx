// Tools: servers of a project and what they offer, calls that wait for an approval, calls that ran, built-in tools.
import { Badge, Empty, Loaded, Time } from "../components/basics";
import { Filters } from "../components/form";
import { Table, type Column } from "../components/table";
import { Tabs } from "../components/tabs";
import { PageHead } from "../frame/head";
import { address, href } from "../lib/address";
import { withQuery } from "../lib/api";
import { duration, number } from "../lib/format";
import { useResource, type Listed, type Resource } from "../lib/resource";
import { hasRole, session } from "../lib/session";
import { ProjectChoice, projectId } from "./access/project";
import { Approvals } from "./tools/approvals";
import { Calls } from "./tools/calls";
import { NewServer } from "./tools/new-server";
import { ServerPage } from "./tools/server";
import { toolsSentence, waitingOf, type Approval, type Asked, type Server, type ToolKind, type ToolsPage } from "./tools/text";
import "./tools.css";

const PATH = "console/api/tools";

export default function Page() {
  const [server] = address.value.rest;
  const tools = useResource<ToolsPage>(withQuery(PATH, { project: projectId() }));
  const people = hasRole("usage");
  const approvals = useResource<Listed<Approval>>(people ? `${PATH}/approvals` : null);
  const [told, waiting] = [tools.data.value, approvals.data.value?.data];
  if (server) return <ServerPage key={server} name={server} tools={tools} />;
  return (
    <>
      <PageHead title="Tools" sentence={told && (!people || waiting || approvals.error.value) ? toolsSentence(told, waiting?.length ?? null) : undefined} />
      {hasRole("admin") ? <Filters><ProjectChoice /></Filters> : <p class="quiet">Of {session.value?.project?.name ?? "your project"}, which your key belongs to.</p>}
      <Tabs label="Tools" tabs={[
        { id: "servers", title: "Servers", content: () => <Servers tools={tools} /> },
        ...(people ? [{ id: "approvals", title: waiting?.length ? `Approvals (${number(waiting.length)})` : "Approvals", content: () => <Approvals approvals={approvals} /> }] : []),
        { id: "calls", title: "Calls", content: () => <Calls path={`${PATH}/calls`} /> },
        { id: "kinds", title: "Built in", content: () => <Loaded of={tools} what="The tools">{({ kinds }) => <Table label="Types of tools" columns={KINDS} rows={kinds} rowKey={(row) => row.type} main={false} empty={<Empty what="This server runs no tools." />} />}</Loaded> },
      ]} />
    </>
  );
}

function Servers({ tools }: { tools: Resource<ToolsPage> }) {
  return (
    <>
      {hasRole("admin") && <NewServer changed={tools.reload} />}
      <Loaded of={tools} what="The tool servers">
        {({ servers }) => (
          <Table label="Tool servers" columns={SERVERS} rows={servers} rowKey={(row) => row.name}
            rowHref={(row) => href(`tools/${row.name}`, { project: address.value.query.get("project") })}
            empty={<Empty what={`MCP servers and APIs whose tools models may use are listed here.${hasRole("admin") ? " Register one above." : " An administrator registers them."}`} />} />
        )}
      </Loaded>
    </>
  );
}

const SERVERS: Column<Server>[] = [
  { key: "name", title: "Server", cell: (row) => row.name, value: (row) => row.name, grow: true },
  { key: "reach", title: "Answers", cell: (row) => <Reach server={row} /> },
  { key: "kind", title: "Kind", cell: (row) => (row.kind === "http" ? "API" : row.kind === "mcp" ? "MCP" : "web search"), value: (row) => row.kind, line: 2 },
  { key: "approved", title: "Approved", number: true, cell: (row) => (row.approved ? <>{number(row.approved.length)}<span class="on-phone"> approved</span></> : <span class="quiet">all</span>), value: (row) => row.approved?.length, line: 2 },
  {
    key: "waiting", title: "Waiting", value: waitingOf, line: 2,
    cell: (row) => (waitingOf(row) ? <Badge level="warn">{number(waitingOf(row))} changed or new</Badge> : <span class="quiet">none</span>),
  },
  { key: "approval", title: "Its calls", cell: (row) => (row.require_approval === "always" ? "wait for approval" : row.require_approval === "never" ? "run" : "as the request says"), line: 0 },
  { key: "url", title: "At", cell: (row) => row.url ?? <span class="quiet">{row.id ? "not shown to you" : "in the server's configuration"}</span>, line: 0 },
  { key: "changed", title: "Changed", cell: (row) => (row.changed_at ? <Time at={row.changed_at} /> : <span class="quiet">-</span>), value: (row) => row.changed_at, line: 0 },
];

/** Whether a server answers now. */
function Reach({ server }: { server: Server }) {
  const asked = useResource<Asked>(server.kind === "web_search" ? null : withQuery(`${PATH}/servers/${encodeURIComponent(server.name)}`, { project: projectId() }));
  const [told, error] = [asked.data.value, asked.error.value];
  if (server.kind === "web_search") return <span class="quiet">asked when a model searches</span>;
  if (!told) return error ? <span class="bad">{error.message}</span> : <span class="quiet">asking …</span>;
  return told.error ? <Badge level="bad">no</Badge> : <><Badge level="good">yes</Badge> <span class="quiet">{duration(told.seconds)}</span></>;
}

const ABOUT: Record<string, string> = {
  calculator: "computes exactly", clock: "tells date and time", code_interpreter: "runs Python in a sandbox", file_search: "finds passages in vector stores",
  mcp: "calls tools of the servers", web_search: "asks a search server",
};

const KINDS: Column<ToolKind>[] = [
  { key: "type", title: "Type", cell: (row) => <code>{row.type}</code>, value: (row) => row.type, grow: true },
  { key: "about", title: "What it does", cell: (row) => ABOUT[row.type] ?? "", line: 2 },
  {
    key: "use", title: "Usable", cell: (row) => (row.problem !== null ? <><Badge level="bad">no</Badge> {row.problem}</>
      : row.allowed ? <Badge level="good">yes</Badge> : <><Badge level="warn">no</Badge> The lists of your project or key leave it out.</>),
  },
];
