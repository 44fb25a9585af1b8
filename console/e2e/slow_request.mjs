// A request is sent, found by its session, opened by keyboard alone, and says where its time went.
import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";

const SESSION = `walk through/${Date.now()}`;

async function json(url, options) {
  const answer = await fetch(url, options);
  assert.equal(answer.ok, true, `${url}: ${answer.status}`);
  return answer.json();
}

/** The request of the session, once it is kept. */
async function kept(visit) {
  const path = `console/api/requests?${new URLSearchParams({ session: SESSION, limit: "1" })}`;
  const end = Date.now() + 60_000;
  while (Date.now() < end) {
    const { data } = await json(new URL(path, visit.root));
    if (data.length) return data[0];
    await pause(100);
  }
  throw new Error("the request was not kept");
}

export async function run(visit) {
  const { page } = visit;
  const { data: models } = await json(new URL("v1/models", visit.root));
  const body = { model: models[0].id, messages: [{ role: "user", content: "Hello" }], max_tokens: 12, prompt_cache_key: SESSION };
  await json(new URL("v1/chat/completions", visit.root), { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  const { id } = await kept(visit);

  await visit.open(`requests?q=${encodeURIComponent(`session:"${SESSION}"`)}`);
  await page.getByText(/^1 (of .+ )?kept requests? of the last hour/).waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await visit.title("POST /v1/chat/completions");
  await visit.settled();
  visit.now = "one request";
  assert.equal(visit.here.split("?")[0], `requests/${id}`);
  const { explanation } = await json(new URL(`console/api/requests/${id}`, visit.root));
  assert.ok((await page.locator(".sentence").innerText()).includes(explanation.sentence));
  const sum = explanation.parts.reduce((all, { begin_s, end_s }) => all + end_s - begin_s, 0);
  assert.ok(Math.abs(sum - explanation.total_s) < 0.001, `${sum} of ${explanation.total_s}`);
  await page.getByRole("row", { name: /\bdecode\b/ }).waitFor();
  await page.getByRole("slider").focus();
  await page.keyboard.press("ArrowRight");
  await page.getByText(/^Token 1 of \d+/).waitFor();

  await page.getByRole("tab", { name: "Timeline" }).focus();
  for (const title of ["Prompt and answer", "Tokens", "Steps it shared", "Raw", "Compare with a typical one"]) {
    await page.keyboard.press("ArrowRight");
    await page.getByRole("tab", { name: title, selected: true }).waitFor();
    await visit.settled();
    visit.now = `one request, ${title}`;
    await visit.inspect();
  }
  await page.goBack();
  await page.getByText(/^1 (of .+ )?kept requests? of the last hour/).waitFor();
  await page.getByRole("link", { name: "The session on one time axis" }).click();
  await visit.title(`Session ${SESSION}`);
  await page.getByText(/^1 request from/).waitFor();
}
