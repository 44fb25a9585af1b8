// A request as something to run: curl, and a test that keeps what it is about.
import { curlLine } from "../../lib/curl";
import type { Contents, RequestDetail } from "./types";

/** Body of the request, as far as it is known: the prompt is a placeholder where it is not kept. */
export function bodyOf({ request, turns }: Pick<RequestDetail, "request" | "turns">, contents?: Contents): Record<string, unknown> {
  const max = turns[0]?.max_tokens;
  const prompt = contents?.prompt ?? null;
  const text = "(the prompt is not kept)";
  const chat = request.endpoint.endsWith("/chat/completions") || request.endpoint.endsWith("/messages");
  const key = chat ? "messages" : request.endpoint.endsWith("/completions") ? "prompt" : "input";
  const messages = Array.isArray(prompt) ? prompt : [{ role: "user", content: typeof prompt === "string" ? prompt : text }];
  const limit = request.endpoint.endsWith("/responses") ? "max_output_tokens" : "max_tokens";
  return {
    model: request.adapter || request.model || "MODEL",
    [key]: chat ? messages : (prompt ?? text),
    ...(max ? { [limit]: max } : {}),
    ...(request.user ? { user: request.user } : {}),
  };
}

/** A curl line. `open`: the server asks for no key. */
export function curlOf(detail: Pick<RequestDetail, "request" | "turns">, server: string, contents?: Contents, open = false): string {
  return curlLine(`${server.replace(/\/$/, "")}${detail.request.endpoint}`, bodyOf(detail, contents), open);
}

/** A pytest function that sends it again and holds it to what it was: its status, and its time. */
export function testOf(detail: Pick<RequestDetail, "request" | "turns">, server: string, contents?: Contents): string {
  const { request } = detail;
  const seconds = Math.max(0.1, Math.ceil(request.total_s * 20) / 10);
  return `import json
import os

import httpx

BODY = json.loads(r"""${JSON.stringify(bodyOf(detail, contents), null, 2).replaceAll('"""', '\\"\\"\\"')}""")


def test_request_${request.id.slice(0, 12)}() -> None:
    key = os.environ.get("OPENAI_API_KEY", "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = httpx.post("${server.replace(/\/$/, "")}${request.endpoint}", json=BODY, headers=headers, timeout=${Math.max(30, Math.ceil(request.total_s * 10))})
    assert answer.status_code == ${request.status || 200}, answer.text
    assert answer.elapsed.total_seconds() < ${seconds}  # it took ${request.total_s.toFixed(3)} s
`;
}
