// A page's file is gone after an upgrade: the console loads itself again, once, then says so.
import assert from "node:assert/strict";

export async function run(visit) {
  const { page } = visit;
  visit.provoked = [/status of 404/];
  let loads = 0;
  page.on("request", (request) => request.isNavigationRequest() && (loads += 1));
  const file = /assets\/overview-[^/]*\.js$/;
  const gone = (route) => route.fulfill({ status: 404, body: "" });
  await page.route(file, (route) => (loads === 1 ? gone(route) : route.continue()));
  await visit.open("overview");
  await visit.title("Overview");
  assert.equal(loads, 2, "the second load has found the new files");

  await page.route(file, gone);
  await page.reload();
  await page.getByText("Overview could not be loaded.").waitFor();
  assert.equal(loads, 3, "it does not load itself for ever");
}
