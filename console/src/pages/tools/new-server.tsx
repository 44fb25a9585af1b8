// Registration of a tool server: what it tells at that moment is approved.
import { useSignal } from "@preact/signals";
import { SelectField, TextField } from "../../components/form";
import { call } from "../../lib/api";
import { ORGANIZATION, change } from "../access/change";
import { projectId, projectName } from "../access/project";

const KINDS = [{ value: "mcp", label: "MCP" }, { value: "http", label: "API (OpenAPI document)" }, { value: "web_search", label: "web search" }];
const RULES = [{ value: "", label: "as the request says" }, { value: "always", label: "always wait for approval" }, { value: "never", label: "run at once" }];

export function serversPath(): string {
  return `${ORGANIZATION}/projects/${encodeURIComponent(projectId())}/tool_servers`;
}

export function NewServer({ changed }: { changed: () => void }) {
  const [name, kind, url, rule, authorization] = [useSignal(""), useSignal("mcp"), useSignal(""), useSignal(""), useSignal("")];
  const register = async (event: Event): Promise<void> => {
    event.preventDefault();
    const body = {
      name: name.value.trim(), kind: kind.value, url: url.value.trim(),
      ...(rule.value ? { require_approval: rule.value } : {}),
      ...(authorization.value ? { headers: { authorization: authorization.value } } : {}),
    };
    const text = `${body.name} is registered in ${projectName(projectId())}; what it tells now is approved.`;
    if (!(await change(text, () => call(serversPath(), { method: "POST", body })))) return;
    name.value = url.value = authorization.value = "";
    changed();
  };
  return (
    <form class="inline-form" onSubmit={(event) => void register(event)} aria-label="New tool server">
      <TextField label="Name of a new server" value={name.value} onChange={(value) => (name.value = value)} placeholder="tickets" required />
      <SelectField label="Kind" value={kind.value} onChange={(value) => (kind.value = value)} choices={KINDS} />
      <TextField label="URL" type="url" value={url.value} onChange={(value) => (url.value = value)} placeholder="https://tickets.example.com/mcp" required />
      <TextField label="Header authorization" type="password" value={authorization.value} onChange={(value) => (authorization.value = value)} placeholder="Bearer …" />
      <SelectField label="Its calls" value={rule.value} onChange={(value) => (rule.value = value)} choices={RULES} />
      <button type="submit" class="button primary">Register</button>
    </form>
  );
}
