// The documentation that the gateway serves below a path: its links and its search work, and nothing is asked of elsewhere.
import assert from "node:assert/strict";

export async function run(visit) {
  const { page, root } = visit;
  const elsewhere = [];
  page.on("request", (request) => {
    const url = request.url();
    if (/^https?:/.test(url) && !url.startsWith(root)) elsewhere.push(url);
  });
  visit.now = "docs/";
  await page.goto(new URL("docs", root).href);
  assert.equal(page.url(), new URL("docs/", root).href);
  await page.getByRole("link", { name: "Install and ask" }).first().click();
  await page.getByRole("heading", { level: 1, name: /Install and ask/ }).waitFor();

  visit.now = "the search of the documentation";
  const dialog = page.locator('dialog[aria-label="Search"]');
  await dialog.waitFor({ state: "attached" }); // a key that is pressed before turns the page
  await page.keyboard.press("Control+k");
  await dialog.locator("input").first().fill("context_length_exceeded");
  await dialog.getByText("The request is wrong").first().click();
  await page.getByRole("heading", { level: 1, name: /Errors by code/ }).waitFor();
  assert.ok(page.url().startsWith(new URL("docs/reference/errors/", root).href), page.url());
  assert.deepEqual(elsewhere, []);
}
