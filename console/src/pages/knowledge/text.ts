// Vector stores, their files and what a search finds, as the API tells them and as people say it.
import type { Level } from "../../components/basics";
import type { SentenceData } from "../../frame/head";
import { count, number, percent } from "../../lib/format";

export interface Store {
  id: string;
  name: string;
  description: string;
  status: "in_progress" | "completed" | "expired";
  usage_bytes: number;
  file_counts: { in_progress: number; completed: number; failed: number; cancelled: number; total: number };
  created_at: number;
  last_active_at: number;
  expires_at: number | null;
  expires_after?: { days: number };
  passages: number;
  /** Model and version whose vectors are searched; null: words alone are compared. */
  embedded_by: string | null;
  embedding_model?: string;
}

export interface StoreFile {
  id: string;
  filename: string;
  status: "in_progress" | "completed" | "failed" | "cancelled";
  progress?: number;
  passages?: number;
  usage_bytes: number;
  created_at: number;
  last_error: { code: string; message: string } | null;
  readers?: string[];
  attributes: Record<string, string | number | boolean>;
}

export interface Scores {
  words: number | null;
  vectors: number | null;
  fusion: number | null;
  reranker: number | null;
}

export interface Place {
  start: number;
  end: number;
  page: number | null;
  section: string;
}

export interface Found {
  data: { file_id: string; filename: string; score: number; content: { text: string }[]; scores: Scores; place: Place }[];
  degraded: string[];
}

interface Said {
  text: string;
  level: Level;
}

export const storeName = ({ id, name }: Pick<Store, "id" | "name">): string => name || id;

export function storeState({ status, file_counts: { in_progress, failed, total } }: Pick<Store, "status" | "file_counts">): Said {
  if (status === "expired") return { text: "expired", level: "bad" };
  if (in_progress) return { text: `reading, ${number(total - in_progress)} of ${number(total)}`, level: "warn" };
  if (failed) return { text: `${number(failed)} failed`, level: "bad" };
  return total ? { text: "ready", level: "good" } : { text: "empty", level: "quiet" };
}

/** The state of all stores that are shown. */
export function storesSentence(stores: Store[], more: boolean): SentenceData {
  if (!stores.length) return { text: "There is no vector store yet: nothing can be searched." };
  const sum = (of: (store: Store) => number): number => stores.reduce((all, store) => all + of(store), 0);
  const [failed, reading] = [sum((each) => each.file_counts.failed), sum((each) => each.file_counts.in_progress)];
  const expired = stores.filter((each) => each.status === "expired").length;
  const unwell = [
    reading ? `${count(reading, "file")} being read` : "",
    failed ? `${count(failed, "file")} failed` : "",
    expired ? `${count(expired, "store")} expired` : "",
  ].filter(Boolean);
  const holds = `${more ? "The newest " : ""}${count(stores.length, "store")} ${stores.length === 1 ? "holds" : "hold"} ${count(sum((each) => each.passages), "passage")} of ${count(sum((each) => each.file_counts.total), "file")}`;
  return { text: `${holds}${unwell.length ? `; ${unwell.join(", ")}` : ""}.`, level: failed || expired ? "bad" : reading ? "warn" : "good" };
}

export function storeSentence(store: Store): SentenceData {
  const { in_progress, failed, total } = store.file_counts;
  if (store.status === "expired") return { text: "It has expired: searches are refused, and it is deleted soon. Make another one.", level: "bad" };
  if (!total) return { text: "It has no file yet: drop one below." };
  const words = store.embedded_by === null && !in_progress ? " They have no vectors: only words are compared." : "";
  if (failed) return { text: `${count(failed, "file")} of ${number(total)} could not be read; the others are found.${words}`, level: "bad" };
  if (in_progress) return { text: `${count(in_progress, "file")} of ${number(total)} ${in_progress === 1 ? "is" : "are"} being read; the others are found.`, level: "warn" };
  return { text: `${total === 1 ? "Its file is" : `All ${number(total)} files are`} found.${words}`, level: words ? "warn" : "good" };
}

const REMEDIES: Record<string, string> = {
  unsupported_file: "Convert it to text, Markdown, HTML, PDF, DOCX, XLSX, CSV or JSON, and add it again.",
  invalid_file: "Mend or split the file, and add it again.",
  server_error: "Ask the operator: the server's log says more.",
};

/** What is wrong with a file, and what to do. */
export function errorText({ code, message }: { code: string; message: string }): string {
  return [message.replace(/[^.!?]$/, "$&."), REMEDIES[code] ?? ""].filter(Boolean).join(" ");
}

export function fileState({ status, progress = 0 }: Pick<StoreFile, "status" | "progress">): Said {
  if (status === "in_progress") return { text: progress ? `reading, ${percent(progress)}` : "waiting", level: "warn" };
  return { text: status === "completed" ? "found" : status, level: status === "completed" ? "good" : status === "failed" ? "bad" : "quiet" };
}

/** Where a passage stands: `page 3 · Trains > Tickets · characters 120 to 940`. */
export function placeText({ start, end, page, section }: Place): string {
  return [page === null ? "" : `page or row ${number(page)}`, section, `characters ${number(start)} to ${number(end)}`].filter(Boolean).join(" · ");
}

/** Scores in the order in which a search makes them; a part that did not rank the passage is left out. */
export function scoreParts({ words, vectors, fusion, reranker }: Scores): { name: string; value: number; why: string }[] {
  const parts: [string, number | null, string][] = [
    ["words", words, "BM25 of the passage and its headings"],
    ["vectors", vectors, "cosine between the query's vector and the passage's"],
    ["fusion", fusion, "from the ranks by words and by vectors; 1 is first in each"],
    ["reranker", reranker, "how well a cross-encoder finds that it answers"],
  ];
  return parts.flatMap(([name, value, why]) => (value === null ? [] : [{ name, value, why }]));
}
