// The page Live: what a request got is in the grid, in words and in tables; a block has its path; states are in the address.
import assert from "node:assert/strict";

export async function run(visit) {
  const { page } = visit;
  const answer = await page.request.post(new URL("v1/chat/completions", visit.root).href, {
    data: { model: "kvarn-demo", messages: [{ role: "user", content: "What does the live page show of this request?" }], max_tokens: 40 },
  });
  assert.ok(answer.ok());
  await visit.open("live");
  await visit.title("Live");
  await page.getByRole("list", { name: /^Requests/ }).getByRole("link").first().waitFor();
  assert.match(await page.locator(".sentence").innerText(), /^(Nothing runs; the last step was|\d+ sequences? run)/);

  await page.getByRole("slider", { name: "Tokens of each request" }).focus();
  await page.keyboard.press("ArrowLeft");
  await page.locator(".live-steps .readout").getByText(/^Step [\d,]+: .+ [mµ]?s/).waitFor();

  await page.getByRole("button", { name: "reuse" }).click();
  await page.getByRole("slider", { name: "KV blocks" }).focus();
  await page.keyboard.press("Home");
  await page.keyboard.press("ArrowRight");
  await page.locator(".live-block").getByText("Block 1:").waitFor();
  await page.locator(".live-path").waitFor();
  await page.keyboard.press("Enter");
  await page.getByText("The grid as tables").click();
  await page.getByRole("table", { name: "The latest steps" }).getByRole("row").nth(1).waitFor();
  assert.equal(visit.here, "live?colour=reuse&block=1&tables=1");
  await page.reload();
  await visit.settled();
  await page.locator(".live-block").getByText("Block 1:").waitFor();
  await visit.inspect();

  await page.getByRole("switch", { name: "live" }).click();
  await page.getByText("The stream is paused.").waitFor();
}
