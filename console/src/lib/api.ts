// Requests to the server that served the console, with its cookie. Errors are typed from the gateway's own.
import { signal } from "@preact/signals";

/** Root of the server, before `console/`: paths are given to it without a leading slash (`console/api/overview`, `v1/models`). */
export const root = typeof document === "undefined" ? "http://localhost/" : new URL("..", document.baseURI).href;

/** Rises whenever the server says that nobody is signed in. */
export const signedOut = signal(0);

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string,
    readonly requestId: string,
    /** Seconds after which it may be tried again, as the server says. */
    readonly retryAfterS: number | null = null,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

interface ErrorBody {
  error?: { message?: string; code?: string | null; type?: string };
  detail?: unknown;
}

/** The error of an answer, from OpenAI's shape, FastAPI's, or none. */
export async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  let body: ErrorBody = {};
  try {
    body = JSON.parse(text) as ErrorBody;
  } catch {
    // a proxy's page, or nothing
  }
  const { error } = body;
  const message =
    error?.message ??
    (typeof body.detail === "string" ? body.detail : `The server answered ${response.status} ${response.statusText}`.trim() + ".");
  const retry = Number(response.headers.get("retry-after") ?? NaN);
  return new ApiError(
    message,
    response.status,
    error?.code ?? error?.type ?? "",
    response.headers.get("x-request-id") ?? "",
    Number.isFinite(retry) ? retry : null,
  );
}

function cookie(name: string): string {
  const found = document.cookie.split("; ").find((pair) => pair.startsWith(`${name}=`));
  return found ? decodeURIComponent(found.slice(name.length + 1)) : "";
}

export interface Options {
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Sent as JSON; FormData as it is. */
  body?: unknown;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

/** The answer to a request, of any content. Throws an ApiError where it is not 2xx or the server is not reached. */
export async function send(path: string, { method = "GET", body, signal, headers = {} }: Options = {}): Promise<Response> {
  const sent: Record<string, string> = { accept: "application/json", ...headers };
  if (method !== "GET") sent["x-kvarn-csrf"] = cookie("kvarn_csrf");
  const form = body instanceof FormData;
  if (body !== undefined && !form) sent["content-type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(new URL(path, root), {
      method,
      headers: sent,
      credentials: "same-origin",
      ...(body === undefined ? {} : { body: form ? body : JSON.stringify(body) }),
      ...(signal ? { signal } : {}),
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Check that kvarn runs and that this machine has a way to it.", 0, "unreachable", "");
  }
  if (response.ok) return response;
  const error = await errorOf(response);
  if (response.status === 401 && path !== "console/api/session") signedOut.value += 1;
  throw error;
}

/** The JSON of an answer; `undefined` where it has no content. */
export async function call<T>(path: string, options: Options = {}): Promise<T> {
  const response = await send(path, options);
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

/** Path with a query; parameters that are empty, null or undefined are left out. */
export function withQuery(path: string, query: Record<string, string | number | boolean | null | undefined>): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}${path.includes("?") ? "&" : "?"}${text}` : path;
}
