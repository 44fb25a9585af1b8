// By keyboard alone: sign in, skip, go to a page, move through rows, open one, come back, read the keys, search.
import assert from "node:assert/strict";

export async function run(visit, { key }) {
  const { page } = visit;
  const { keyboard } = page;
  visit.provoked = [/status of 404/]; // nothing but its row is kept of the request that is opened
  const focused = () => page.evaluate(() => document.activeElement?.textContent?.trim() ?? "");
  await visit.open("");
  await keyboard.type(key); // the field has the focus
  await keyboard.press("Enter");
  await visit.title("Overview");
  await visit.settled();
  await keyboard.press("Tab");
  assert.equal(await focused(), "Skip to the page");
  await keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "main");

  await keyboard.press("g");
  await keyboard.press("r");
  await visit.title("Requests");
  await visit.settled();
  await keyboard.press("j");
  await keyboard.press("j");
  await keyboard.press("k");
  const link = await page.evaluate(() => document.activeElement?.getAttribute("href"));
  assert.equal(link, await page.locator("a.row-link").first().getAttribute("href"), "j and k move through rows");
  await keyboard.press("Enter");
  await page.waitForURL((url) => url.href === new URL(link, visit.root).href || url.href.endsWith(link));
  await visit.settled();
  await page.goBack();
  await visit.title("Requests");

  await keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
  await keyboard.press("Escape");
  await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor({ state: "hidden" });
  await keyboard.press("/");
  await keyboard.type("g o");
  await visit.title("Requests"); // what is typed into a field is no shortcut
  await keyboard.press("Escape");
  await keyboard.press("g");
  await keyboard.press("o");
  await visit.title("Overview");
}
