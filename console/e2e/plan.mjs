// A plan for a known model: a slider changes the answer and the address, a number tells how it came about, a config.json is planned for.
import assert from "node:assert/strict";

const CONFIG = {
  architectures: ["LlamaForCausalLM"], model_type: "llama", hidden_size: 2048, intermediate_size: 8192, num_hidden_layers: 16,
  num_attention_heads: 32, num_key_value_heads: 8, vocab_size: 128256, max_position_embeddings: 8192, rms_norm_eps: 1e-5, torch_dtype: "bfloat16",
};

export async function run(visit) {
  const { page } = visit;
  await visit.open("plan?of=Qwen/Qwen3-8B&gpu=h100");
  const sentence = page.locator(".sentence");
  await sentence.filter({ hasText: "requests/s of Qwen/Qwen3-8B for $" }).waitFor();
  const first = await sentence.innerText();
  await page.getByLabel("Requests, slider").fill("150"); // of 200 steps
  await page.waitForURL(/rate=/);
  await sentence.filter({ hasNotText: first }).filter({ hasText: "requests/s of Qwen/Qwen3-8B for $" }).waitFor();

  const cost = page.getByRole("group").filter({ hasText: "A million tokens" }).first();
  await cost.locator("summary").click();
  await cost.getByText("Formula").waitFor();
  await cost.getByText("Assumes").waitFor();
  await visit.inspect();

  await page.getByRole("table", { name: "Candidates" }).locator("a.row-link").nth(1).click();
  await page.waitForURL(/pick=/);
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "HTML" }).click();
  assert.match((await download).suggestedFilename(), /^plan-.*\.html$/);

  await page.getByRole("combobox", { name: "Model" }).selectOption("config.json");
  await page.getByLabel("config.json").fill("{");
  await page.getByText("This is not JSON").waitFor();
  await page.getByLabel("config.json").fill(JSON.stringify(CONFIG));
  await sentence.filter({ hasText: "requests/s of config.json for $" }).waitFor();
  const link = visit.here;
  await page.reload();
  await sentence.filter({ hasText: "requests/s of config.json for $" }).waitFor();
  assert.equal(visit.here, link, "a link keeps the state");
  await page.getByLabel("Compare with another device").selectOption("h200");
  await page.getByRole("button", { name: /H200.*leave it out/ }).waitFor();
}
