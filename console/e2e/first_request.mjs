// A new user sends a request, finds it, and reads why it took as long as it did.
import assert from "node:assert/strict";

const TOLERANCE_S = 0.001;

export async function run(visit) {
  const { page } = visit;
  visit.provoked = [/status of 404/]; // the playground asks for a request that is not kept yet
  await visit.open("");
  await page.getByRole("link", { name: /^Playground/ }).click();
  await visit.title("Playground");
  const began = performance.now();
  await page.getByLabel("What to ask").press("Enter");
  const why = page.getByRole("link", { name: "Why did it take so long?" });
  await why.waitFor();
  const id = (await why.getAttribute("href")).match(/requests\/([^?]+)/)[1];
  await visit.settled();
  assert.ok((await page.getByRole("article", { name: "Answer" }).innerText()).trim(), "the answer is shown");

  const detail = await kept(visit, id);
  const waited_s = (performance.now() - began) / 1000; // what is kept is over
  await page.getByRole("link", { name: /^Requests/ }).click();
  await visit.title("Requests");
  await visit.settled();
  await page.locator(`a.row-link[href*="${detail.request.id}"]`).click();
  await visit.title(detail.name);
  await visit.settled();

  const { sentence, parts, total_s } = detail.explanation;
  assert.match(sentence, /\d/, "the sentence says how much");
  assert.equal((await page.locator(".sentence").innerText()).trim(), sentence);
  const sum = parts.reduce((all, part) => all + part.end_s - part.begin_s, 0);
  assert.ok(Math.abs(sum - total_s) < TOLERANCE_S, `the parts take ${sum} s, all of it ${total_s} s`);
  assert.ok(total_s > 0 && total_s < waited_s, `the request took ${total_s} s, its client waited ${waited_s} s`);
  await visit.inspect();
}

/** The request's detail, once it is kept. */
async function kept(visit, id) {
  for (let tries = 0; tries < 300; tries += 1) {
    const answer = await visit.page.request.get(visit.address(`api/requests/${id}`));
    if (answer.ok()) return answer.json();
    await visit.page.waitForTimeout(100);
  }
  throw new Error(`the request ${id} is not kept`);
}
