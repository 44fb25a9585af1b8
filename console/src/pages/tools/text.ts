// Tools, their servers, calls and approvals, as the server tells them and as people say it.
import type { Level } from "../../components/basics";
import type { SentenceData } from "../../frame/head";
import { count, number } from "../../lib/format";
import { lineDiff, type Line } from "./diff";

export interface ToolKind {
  type: string;
  problem: string | null;
  allowed: boolean;
}

export interface Server {
  /** Null: the operator's configuration has it. */
  id: string | null;
  name: string;
  kind: string;
  url: string | null;
  description: string;
  require_approval: string | null;
  /** Null: all that it tells. */
  approved: string[] | null;
  waiting: Record<string, string>;
  refused: string[];
  allowed: boolean;
  changed_at: number | null;
}

export interface ToolsPage {
  kinds: ToolKind[];
  servers: Server[];
}

export interface ShownTool {
  description: string | null;
  input_schema: Record<string, unknown>;
  annotations: Record<string, unknown> | null;
  request: string | null;
}

export interface ServerTool extends ShownTool {
  name: string;
  status: "approved" | "changed" | "new" | "refused";
  digest: string;
  approved: ShownTool | null;
}

/** Answer of `GET /console/api/tools/servers/{name}`. */
export interface Asked {
  seconds: number;
  error: string | null;
  tools: { data: ServerTool[]; digest: string; gone: string[] } | null;
}

export interface Call {
  id: string;
  created_at: number;
  type: string;
  name: string;
  status: string;
  duration_ms: number | null;
  result_bytes: number | null;
  error: string | null;
  request: string;
  approved: boolean;
}

export interface Approval {
  id: string;
  response_id: string;
  conversation_id: string | null;
  created_at: number;
  model: string;
  server_label: string;
  name: string;
  arguments: string;
  of_project: boolean;
}

export const waitingOf = ({ waiting }: Pick<Server, "waiting">): number => Object.keys(waiting).length;

/** The state of a project's tools. `approvals`: calls that wait; null: not shown to whoever looks. */
export function toolsSentence({ servers }: ToolsPage, approvals: number | null): SentenceData {
  const changed = servers.reduce((sum, each) => sum + waitingOf(each), 0);
  const waits = [
    changed ? `${count(changed, "changed or new tool")} of ${count(servers.filter(waitingOf).length, "server")} ${changed === 1 ? "waits" : "wait"} for an administrator` : "",
    approvals ? `${count(approvals, "call")} ${approvals === 1 ? "waits" : "wait"} for an approval` : "",
  ].filter(Boolean).join("; ");
  const has = servers.length ? count(servers.length, "tool server") : "No tool server is registered";
  return waits
    ? { text: `${waits[0]?.toUpperCase()}${waits.slice(1)}.`, level: "warn", to: changed ? "tools" : "tools?tab=approvals" }
    : { text: servers.length ? `${has}, and nothing waits.` : `${has}, and nothing waits: models have the built-in tools.`, level: "good" };
}

export const STATUS: Record<ServerTool["status"], { text: string; level: Level }> = {
  approved: { text: "approved", level: "good" },
  changed: { text: "changed, not offered", level: "bad" },
  new: { text: "new, not offered", level: "warn" },
  refused: { text: "refused, not offered", level: "quiet" },
};

/** Tools that wait first, those that are approved last. */
export function byNeed(tools: ServerTool[]): ServerTool[] {
  const order = ["changed", "new", "refused", "approved"];
  return [...tools].sort((one, other) => order.indexOf(one.status) - order.indexOf(other.status) || one.name.localeCompare(other.name));
}

function linesOf(tool: ShownTool): string[] {
  const { annotations, request, description, input_schema } = tool;
  const said = [...(request ? [request] : []), ...(description ?? "").split("\n"), ...(annotations ? [`annotations ${JSON.stringify(annotations)}`] : [])];
  return [...said, ...JSON.stringify(input_schema, null, 2).split("\n")];
}

/** What a tool says, beside what it said when it was approved where that is another thing. */
export function toolLines(tool: ServerTool): Line[] {
  const lines = linesOf(tool);
  return tool.approved ? lineDiff(linesOf(tool.approved), lines) : lines.map((text) => ({ sign: tool.status === "new" ? "+" : " ", text }));
}

/** What is decided about a server's tools: `2 changed, 1 new, 1 gone`. */
export function listText({ data, gone }: NonNullable<Asked["tools"]>): string {
  const many = (status: ServerTool["status"]): number => data.filter((each) => each.status === status).length;
  const parts: [number, string][] = [[many("approved"), "approved"], [many("changed"), "changed"], [many("new"), "new"], [many("refused"), "refused"], [gone.length, "gone"]];
  return parts.filter(([value]) => value > 0).map(([value, word]) => `${number(value)} ${word}`).join(", ") || "no tools";
}

export const CALL_LEVELS: Record<string, Level> = { completed: "good", failed: "bad", incomplete: "warn", cancelled: "quiet", started: "warn" };

/** Text of an error of a call, whichever of the APIs' shapes it has. */
export function callError(error: string | null): string {
  if (!error) return "";
  try {
    const { message, content } = JSON.parse(error) as { message?: string; content?: { text?: string }[] };
    return message ?? content?.map(({ text }) => text ?? "").join("\n") ?? error;
  } catch {
    return error;
  }
}

/** Calls of one response: they are answered together, since the model goes on once. */
export function byResponse(approvals: Approval[]): Approval[][] {
  const groups = new Map<string, Approval[]>();
  for (const each of approvals) groups.set(each.response_id, [...(groups.get(each.response_id) ?? []), each]);
  return [...groups.values()];
}

/** JSON on lines of its own, where it is JSON. */
export function prettyJson(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const CARRIED = ["model", "instructions", "tools", "temperature", "top_p", "max_output_tokens", "max_tool_calls", "parallel_tool_calls", "text", "reasoning", "truncation"];

/** The request that answers the approvals for which a response waits: the model goes on as it was asked. */
export function answerTo(response: Record<string, unknown>, waiting: Approval[], approve: boolean): Record<string, unknown> {
  const carried = CARRIED.flatMap((name) => (response[name] === null || response[name] === undefined ? [] : [[name, response[name]]]));
  const conversation = waiting[0]?.conversation_id;
  return {
    ...Object.fromEntries(carried),
    ...(conversation ? { conversation } : { previous_response_id: response["id"] }),
    input: waiting.map(({ id }) => ({ type: "mcp_approval_response", approval_request_id: id, approve })),
    background: true,
  };
}
