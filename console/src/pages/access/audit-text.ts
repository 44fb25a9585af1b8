// Entries of the audit log as people read them.

/** A row of `GET /v1/organization/audit_logs`: what was done stands under the name of its type. */
export interface AuditEntry {
  id: string;
  type: string;
  effective_at: number;
  project?: { id: string; name: string };
  actor: { type: string; name?: string; session?: { user?: { email?: string } }; api_key?: { id: string; user?: { email?: string } } };
  [detail: string]: unknown;
}

/** `deployment.rolled_back` as `Deployment rolled back`, `api_key.created` as `API key created`. */
export function eventText(type: string): string {
  const text = type.replaceAll(/[._]/g, " ").replace(/^api key/, "API key");
  return (text[0]?.toUpperCase() ?? "") + text.slice(1);
}

export function actorText({ actor }: AuditEntry): string {
  const email = actor.session?.user?.email ?? actor.api_key?.user?.email;
  if (email) return actor.api_key ? `${email}, with key ${actor.name ?? actor.api_key.id}` : email;
  return actor.name ?? actor.type;
}

export function objectOf(entry: AuditEntry): { id: string; [detail: string]: unknown } {
  const found = entry[entry.type];
  return typeof found === "object" && found !== null ? { id: "", ...found } : { id: "" };
}
