// Conversations of a project, and the items of one.
import { CopyButton, Empty, ErrorBox, Facts, Loaded, Time } from "../../components/basics";
import { Filters } from "../../components/form";
import { Table, type Column } from "../../components/table";
import { address, href, param } from "../../lib/address";
import { withQuery } from "../../lib/api";
import { exampleCurl } from "../../lib/curl";
import { number } from "../../lib/format";
import { useRows, type Listed } from "../../lib/resource";
import { hasRole, session } from "../../lib/session";
import { messagesOf } from "../requests/messages";
import { ProjectChoice, projectId, projectName } from "./project";

interface Conversation {
  id: string;
  created_at: number;
  changed_at: number;
  items: number;
  metadata: Record<string, string>;
}

/** Answer of `GET /console/api/conversations/{id}`. */
interface Opened extends Listed<unknown> {
  conversation: Conversation;
}

const PATH = "console/api/conversations";
const metadataText = (metadata: Conversation["metadata"]): string => Object.entries(metadata).map(([name, value]) => `${name}: ${value}`).join(", ");
const here = (conversation: string | null): string => href("access", { tab: "conversations", project: address.value.query.get("project"), conversation });

const COLUMNS: Column<Conversation>[] = [
  { key: "id", title: "Conversation", cell: (row) => <code>{row.id}</code>, grow: true },
  { key: "metadata", title: "Metadata", cell: (row) => metadataText(row.metadata) || <span class="quiet">none</span>, line: 2, grow: true },
  { key: "items", title: "Items", number: true, cell: (row) => <>{number(row.items)}<span class="on-phone"> items</span></>, value: (row) => row.items },
  { key: "created", title: "Begun", cell: (row) => <Time at={row.created_at} />, value: (row) => row.created_at, line: 0 },
  { key: "changed", title: "Last use", cell: (row) => <Time at={row.changed_at} />, value: (row) => row.changed_at, line: 2 },
];

export function ConversationsTab() {
  const opened = param("conversation").value;
  return opened ? <OneConversation id={opened} /> : <Conversations />;
}

function Conversations() {
  const conversations = useRows<Conversation>(withQuery(PATH, { project: projectId() }));
  return (
    <>
      {hasRole("admin") ? <Filters><ProjectChoice /></Filters> : <p class="quiet">Of {session.value?.project?.name ?? "your project"}, which your key belongs to.</p>}
      <Loaded of={conversations} what="The conversations">
        {(list) => (
          <Table label="Conversations" columns={COLUMNS} rows={list.data} rowKey={(row) => row.id} rowHref={(row) => here(row.id)}
            hasMore={list.has_more} loading={conversations.loading.value} onMore={conversations.more}
            empty={<Empty what={`Conversations of ${projectName(projectId())} that clients made (/v1/conversations) are listed here.`}
              command={exampleCurl("v1/conversations", { metadata: { topic: "demo" }, items: [{ type: "message", role: "user", content: "Hello" }] })} />} />
        )}
      </Loaded>
    </>
  );
}

function OneConversation({ id }: { id: string }) {
  const items = useRows<unknown>(withQuery(`${PATH}/${encodeURIComponent(id)}`, { project: projectId() }));
  const error = items.error.value;
  return (
    <>
      <p class="row"><a href={here(null)}>All conversations</a> <code>{id}</code> <CopyButton text={id} what="the conversation's id" /></p>
      {error?.status === 403 && !items.data.value ? <ErrorBox error={error} what="This conversation is not shown to you." /> : (
        <Loaded of={items} what="The conversation">{(list) => <Items opened={list as Opened} loading={items.loading.value} more={items.more} />}</Loaded>
      )}
    </>
  );
}

function Items({ opened, loading, more }: { opened: Opened; loading: boolean; more: () => void }) {
  const { conversation } = opened;
  return (
    <div class="stack">
      <Facts facts={[
        ["Begun", <Time at={conversation.created_at} absolute />],
        ["Last use", <Time at={conversation.changed_at} />],
        ["Items", number(conversation.items)],
        ["Metadata", metadataText(conversation.metadata) || "none"],
        ["Requests", <a href={href("requests", { session: conversation.id, range: "30d" })}>those kept of it</a>],
      ]} />
      <p class="quiet">The audit log now names you as a reader.</p>
      {messagesOf(opened.data, "item").map(({ role, text }, index) => (
        <div class="turn" key={index}><span class="quiet">{role}</span><div>{text}</div></div>
      ))}
      {!opened.data.length && <Empty what="It has no items yet." />}
      {opened.has_more && <button type="button" class="button small" disabled={loading} onClick={more}>{loading ? "Loading …" : "More items"}</button>}
    </div>
  );
}
