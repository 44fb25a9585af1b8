// Access: who may use what, how much, and who changed it; and what is stored and running for them.
import { Tabs, type Tab } from "../components/tabs";
import { PageHead } from "../frame/head";
import { count } from "../lib/format";
import { hasRole, session } from "../lib/session";
import { AuditTab } from "./access/audit";
import { BudgetsTab } from "./access/budgets";
import { ConversationsTab } from "./access/conversations";
import { KeysTab } from "./access/keys";
import { LimitsTab } from "./access/limits";
import { MembersTab } from "./access/members";
import { ProjectsTab } from "./access/projects";
import { BatchesTab, FilesTab } from "./access/stored";
import { TenantsTab } from "./access/tenants";
import { UsersTab } from "./access/users";
import "./access.css";

const OF_ADMINS: Tab[] = [
  { id: "keys", title: "Keys", content: () => <KeysTab /> },
  { id: "projects", title: "Projects", content: () => <ProjectsTab /> },
  { id: "members", title: "Members", content: () => <MembersTab /> },
  { id: "users", title: "Users", content: () => <UsersTab /> },
  { id: "limits", title: "Limits", content: () => <LimitsTab /> },
  { id: "budgets", title: "Budgets", content: () => <BudgetsTab /> },
  { id: "audit", title: "Audit log", content: () => <AuditTab /> },
];
const OF_PLATFORM: Tab[] = [{ id: "tenants", title: "Tenants", content: () => <TenantsTab /> }];
const OF_ALL: Tab[] = [
  { id: "batches", title: "Batches", content: () => <BatchesTab /> },
  { id: "files", title: "Files", content: () => <FilesTab /> },
  { id: "conversations", title: "Conversations", content: () => <ConversationsTab /> },
];

export default function AccessPage() {
  const now = session.value;
  const [organization, project] = [now?.organization?.name ?? "this organisation", now?.project?.name ?? "this project"];
  const admin = hasRole("admin");
  const text = admin
    ? `You administer ${organization}: ${count(now?.projects?.length ?? 0, "project")}${hasRole("platform") ? ", and every tenant" : ""}.`
    : `You see the batches, files and conversations of ${project}. Keys, users, limits and budgets are changed by an administrator of ${organization}.`;
  return (
    <>
      <PageHead title="Access" sentence={{ text }} />
      <Tabs label="Access" tabs={[...(admin ? OF_ADMINS : []), ...(hasRole("platform") ? OF_PLATFORM : []), ...OF_ALL]} />
    </>
  );
}
