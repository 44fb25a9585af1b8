// With a hundred thousand requests kept, a list asks once, for few bytes, and draws few rows; what it costs in time is
// measured by benchmarks/console_paint.
import assert from "node:assert/strict";

const ROWS = 50;
const MAX_BYTES = 64_000;
const MAX_ELEMENTS = 3000;

export async function run(visit, { key }) {
  const { page } = visit;
  await visit.open("overview");
  await visit.signIn(key);
  for (const query of ["", "&order=slowest", "&status=5xx", "&model=model-1&order=slowest"]) {
    const answers = [];
    const listen = (response) => response.url().includes("/console/api/requests?") && answers.push(response);
    page.on("response", listen);
    await visit.open(`requests?range=24h${query}`);
    page.off("response", listen);
    assert.equal(answers.length, 1, `${query}: asked once`);
    const bytes = (await answers[0].body()).length;
    assert.ok(bytes <= MAX_BYTES, `${query}: ${bytes} bytes`);
    assert.equal(await page.locator("tbody tr").count(), ROWS, query);
    const elements = await page.evaluate(() => document.querySelectorAll("*").length);
    assert.ok(elements <= MAX_ELEMENTS, `${query}: ${elements} elements`);
  }
  await page.getByRole("button", { name: `Next ${ROWS}` }).click();
  await page.locator("tbody tr").nth(2 * ROWS - 1).waitFor();
  const links = await page.locator("a.row-link").evaluateAll((all) => all.map((link) => link.href));
  assert.equal(new Set(links).size, 2 * ROWS, "other rows than the first");
}
