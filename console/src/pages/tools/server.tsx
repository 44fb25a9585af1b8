// One tool server: whether it answers, its tools, and what of them changed since they were approved.
import { Badge, CopyButton, Empty, Facts, Loaded } from "../../components/basics";
import { ask } from "../../components/dialog";
import { PageHead, type SentenceData } from "../../frame/head";
import { address, go, href } from "../../lib/address";
import { call, withQuery } from "../../lib/api";
import { count, duration } from "../../lib/format";
import { useResource, type Resource } from "../../lib/resource";
import { hasRole } from "../../lib/session";
import { change } from "../access/change";
import { projectId } from "../access/project";
import { serversPath } from "./new-server";
import { STATUS, byNeed, listText, toolLines, type Asked, type Server, type ServerTool, type ToolsPage } from "./text";

const here = (): string => href("tools", { project: address.value.query.get("project") });

function sentenceOf({ error, tools, seconds }: Asked): SentenceData {
  if (!tools) return { text: `It does not answer: ${error ?? "why is not known"}`, level: "bad" };
  const waits = tools.data.some(({ status }) => status === "changed" || status === "new");
  return { text: `It answers in ${duration(seconds)}: ${listText(tools)}.${waits ? " What waits is not offered to models; the others work." : ""}`, level: waits ? "warn" : "good" };
}

export function ServerPage({ name, tools }: { name: string; tools: Resource<ToolsPage> }) {
  const asked = useResource<Asked>(withQuery(`console/api/tools/servers/${encodeURIComponent(name)}`, { project: projectId() }));
  const server = tools.data.value?.servers.find((each) => each.name === name);
  const may = hasRole("admin") && Boolean(server?.id);
  const path = `${serversPath()}/${encodeURIComponent(server?.id ?? "")}`;
  const remove = async (): Promise<void> => {
    const agreed = await ask({ title: `Delete tool server ${name}?`, text: `Requests that name it fail; its headers and approvals are forgotten. This cannot be undone.`, action: "Delete", danger: true });
    if (!agreed || !(await change(`${name} is deleted.`, () => call(path, { method: "DELETE" })))) return;
    tools.data.value = undefined; // the deleted server is not asked again
    tools.reload();
    go(here());
  };
  const decide = async (verb: "approve" | "refuse", digest: string, changed: number): Promise<void> => {
    const accepts = verb === "approve";
    const agreed = await ask({
      title: accepts ? `Accept what ${name} tells now?` : `Refuse ${count(changed, "tool")} of ${name}?`, action: accepts ? "Accept" : "Refuse", danger: !accepts,
      text: accepts ? "Models are offered its tools as they are shown here. A tool that changes later waits again." : "They are not offered, and wait no more until the server tells something else. What was approved stays approved.",
    });
    if (!agreed) return;
    await change(accepts ? `The tools of ${name} are accepted.` : `${count(changed, "tool")} of ${name} refused.`, () => call(`${path}/${verb}`, { method: "POST", body: { digest } }));
    asked.reload();
    tools.reload();
  };
  return (
    <>
      <PageHead title={name} sentence={asked.data.value ? sentenceOf(asked.data.value) : asked.error.value ? { text: "It could not be asked.", level: "bad" } : undefined}>
        <a href={here()}>All tools</a>
        <button type="button" class="button small" disabled={asked.loading.value} onClick={asked.reload}>Ask again</button>
        {may && <button type="button" class="button small" onClick={() => void remove()}>Delete</button>}
      </PageHead>
      <div class="stack">
        {server && <About server={server} />}
        {server?.kind === "web_search" ? <p class="quiet">It has one tool, web_search, and is asked when a model searches.</p> : (
          <Loaded of={asked} what="What it tells">
            {({ tools: list }) => (list ? <Told list={list} decide={may ? decide : undefined} /> : <Empty what="Its tools are not offered to models while it does not answer. Check its address and its credentials, then ask again." />)}
          </Loaded>
        )}
      </div>
    </>
  );
}

function About({ server }: { server: Server }) {
  return (
    <Facts facts={[
      ["Kind", server.kind],
      ["At", server.url ?? (server.id ? "not shown to you" : "the server's configuration names it: its tools need no approval")],
      ["Its calls", server.require_approval === "always" ? "always wait for an approval" : server.require_approval === "never" ? "run, unless a request says otherwise" : "wait for an approval, unless a request says otherwise"],
      ...(server.description ? [["Description", server.description] as [string, string]] : []),
      ...(server.allowed ? [] : [["For you", <Badge level="warn">the lists of your project or key leave it out</Badge>] as [string, preact.ComponentChildren]]),
    ]} />
  );
}

function Told({ list, decide }: { list: NonNullable<Asked["tools"]>; decide: ((verb: "approve" | "refuse", digest: string, changed: number) => Promise<void>) | undefined }) {
  const waiting = list.data.filter(({ status }) => status === "changed" || status === "new").length;
  const differs = list.data.some(({ status }) => status !== "approved") || list.gone.length > 0;
  return (
    <section class="section">
      <h2>Tools</h2>
      {list.gone.length > 0 && <p class="warn">Approved, and told no more: {list.gone.join(", ")}.</p>}
      {decide && differs && (
        <p class="row">
          <button type="button" class="button primary" onClick={() => void decide("approve", list.digest, waiting)}>Accept this list</button>
          {waiting > 0 && <button type="button" class="button" onClick={() => void decide("refuse", list.digest, waiting)}>Refuse the changes</button>}
          <span class="quiet">Digest of the list <code>{list.digest.slice(0, 12)}</code></span>
        </p>
      )}
      {!decide && waiting > 0 && <p class="quiet">An administrator of the organisation accepts or refuses the changes.</p>}
      {list.data.length === 0 && <Empty what="It tells no tools." />}
      {byNeed(list.data).map((tool) => <Tool key={tool.name} tool={tool} />)}
    </section>
  );
}

function Tool({ tool }: { tool: ServerTool }) {
  const { text, level } = STATUS[tool.status];
  return (
    <details class="tool" open={tool.status === "changed" || tool.status === "new"}>
      <summary><code>{tool.name}</code> <Badge level={level}>{text}</Badge> <span class="quiet">{(tool.description ?? "").split("\n")[0]}</span></summary>
      {tool.status === "changed" && !tool.approved && <p class="quiet">What it said when it was approved was not kept then: shown is what it says now.</p>}
      <pre tabIndex={0} aria-label={`What ${tool.name} says`} class="diff">
        {toolLines(tool).map(({ sign, text: line }, index) => (
          <span key={index} class={sign === "+" ? "good" : sign === "-" ? "bad" : undefined}>{sign} {line}{"\n"}</span>
        ))}
      </pre>
      <p class="quiet">Pinned by <code>{tool.digest.slice(0, 12)}</code> <CopyButton text={tool.digest} what={`the digest of ${tool.name}`} /></p>
    </details>
  );
}
