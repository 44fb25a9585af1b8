// Every page opens in both themes and widths, and what lies below pages in the dark on a phone: nothing in the browser's
// console, nothing that axe finds.
import assert from "node:assert/strict";
import { PHONE, WIDE } from "./lib/browser.mjs";

export async function run(visit, { pages }) {
  for (const name of pages) {
    await visit.page.emulateMedia({ colorScheme: "light" });
    await visit.page.setViewportSize(WIDE);
    await visit.open(name);
    await visit.inspect();
    await visit.page.emulateMedia({ colorScheme: "dark" });
    visit.now = `${name}, dark`;
    await visit.inspect(["color-contrast"]);
    await visit.page.setViewportSize(PHONE);
    await visit.open(name);
    visit.now = `${name}, dark, ${PHONE.width} px`;
    await visit.inspect();
    await visit.page.emulateMedia({ colorScheme: "light" });
    visit.now = `${name}, ${PHONE.width} px`;
    await visit.inspect(["color-contrast"]);
  }
  await visit.page.emulateMedia({ colorScheme: "dark" });
  for (const path of [`requests/${await kept(visit)}`, "access"]) await eachTab(visit, path);
  for (const name of ["models", "alerts"]) {
    await visit.open(name);
    await visit.page.locator("a.row-link").first().click();
    await visit.page.waitForURL(`**/console/${name}/*`);
    await visit.settled();
    visit.now = `${visit.here}, dark, ${PHONE.width} px`;
    await visit.inspect();
  }
}

async function eachTab(visit, path) {
  await visit.open(path);
  const tabs = visit.page.getByRole("tab");
  await tabs.first().waitFor();
  const titles = await tabs.allTextContents();
  assert.ok(titles.length > 3, `${titles}`);
  for (const name of titles) {
    await visit.page.getByRole("tab", { name, exact: true }).click();
    await visit.page.getByRole("tab", { name, exact: true, selected: true }).waitFor();
    await visit.settled();
    visit.now = `${path}, ${name}, dark, ${PHONE.width} px`;
    await visit.inspect();
  }
}

/** Id of a request that is kept. */
async function kept(visit) {
  const { request } = visit.page;
  const session = `pages ${Date.now()}`;
  const { data: models } = await (await request.get(new URL("v1/models", visit.root).href)).json();
  const data = { model: models[0].id, messages: [{ role: "user", content: "Hello" }], max_tokens: 12, prompt_cache_key: session };
  const answer = await request.post(new URL("v1/chat/completions", visit.root).href, { data });
  assert.ok(answer.ok(), `${answer.status()}`);
  for (let tries = 0; tries < 300; tries += 1) {
    const found = await (await request.get(visit.address(`api/requests?${new URLSearchParams({ session })}`))).json();
    if (found.data.length) return found.data[0].id;
    await visit.page.waitForTimeout(100);
  }
  throw new Error("the request was not kept");
}
