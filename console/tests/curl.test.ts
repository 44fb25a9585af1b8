import { afterEach, expect, it } from "vitest";
import { exampleChat, exampleCurl, shellQuoted } from "../src/lib/curl";
import { session } from "../src/lib/session";

afterEach(() => {
  session.value = null;
});

it("quotes what a shell would read", () => {
  expect(shellQuoted("it's $HOME")).toBe(`'it'\\''s $HOME'`);
});

it("has a key, but on an open server", () => {
  expect(exampleCurl("v1/files", "-F file=@a")).toBe('curl http://localhost/v1/files -H "Authorization: Bearer $OPENAI_API_KEY" -F file=@a');
  session.value = { signed_in: false, open: true, features: {} };
  expect(exampleChat("chat-8b")).toBe(
    `curl http://localhost/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"chat-8b","messages":[{"role":"user","content":"Hello"}]}'`);
});
