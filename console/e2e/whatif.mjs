// Requests are sent, then simulated with another replica: both distributions are drawn, in words and figures, and a link shows them again.
import assert from "node:assert/strict";

export async function run(visit) {
  const { page } = visit;
  const { request } = page;
  const { data: models } = await (await request.get(new URL("v1/models", visit.root).href)).json();
  const model = models[0].id;
  for (let sent = 0; sent < 3; sent += 1) {
    const data = { model, messages: [{ role: "user", content: `Hello ${sent}` }], max_tokens: 12 };
    assert.ok((await request.post(new URL("v1/chat/completions", visit.root).href, { data })).ok());
  }
  for (let tries = 0; !(await used(visit, model)); tries += 1) {
    assert.ok(tries < 300, "the ledger has the requests, and the engine knows its steps");
    await page.waitForTimeout(100);
  }
  await visit.open(`whatif?model=${model}`);
  await page.getByLabel("Replicas").fill("2");
  await page.getByLabel("KV cache").selectOption("int8");
  await page.getByRole("button", { name: "Simulate" }).click();
  const figures = page.getByRole("table", { name: "Figures" });
  await figures.waitFor();
  await page.locator(".sentence").filter({ hasText: /^With 2 replicas, int8 cache: TTFT p95 / }).waitFor();
  assert.equal(await page.locator(".chart canvas").count(), 2, "both distributions are drawn");
  assert.match(await figures.getByRole("row", { name: /^Answered/ }).innerText(), /\d/);
  await page.getByText("pass outside the engine").waitFor();
  await page.getByText("models.0.replicas=2").waitFor();
  await visit.inspect();

  const sentence = await page.locator(".sentence").innerText();
  await page.reload();
  await figures.waitFor();
  assert.equal(await page.locator(".sentence").innerText(), sentence, "a link shows the same");
  await page.getByRole("button", { name: "Stop and clear" }).click();
  await figures.waitFor({ state: "hidden" });
  assert.ok(!visit.here.includes("until"));
}

async function used(visit, model) {
  const usage = await (await visit.page.request.get(visit.address(`api/usage?range=1h&model=${model}`))).json();
  const choices = await (await visit.page.request.get(visit.address("api/what-if"))).json();
  return usage.buckets.reduce((sum, bucket) => sum + bucket.requests, 0) >= 3 && choices.models.find((each) => each.name === model).measured;
}
