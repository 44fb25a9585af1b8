// A model is found in the list, its replica is told, and putting it to sleep asks first.
import assert from "node:assert/strict";

export async function run(visit) {
  const { page } = visit;
  await visit.open("models");
  await page.locator("a.row-link").first().click();
  await page.getByRole("table", { name: "Replicas" }).waitFor();
  assert.match(visit.here, /^models\/[^?]+/);
  await page.getByRole("button", { name: "Sleep" }).click();
  await page.getByRole("dialog").getByText("Put kvarn-demo to sleep?").or(page.getByRole("dialog", { name: /^Put .+ to sleep\?$/ })).first().waitFor();
  await visit.inspect();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("textbox", { name: "Replicas" }).or(page.getByRole("spinbutton", { name: "Replicas" })).fill("257");
  await page.getByText("0 to 256").waitFor();
  await page.getByRole("link", { name: "All models" }).click();
  await page.getByRole("table", { name: "Models" }).waitFor();
  await visit.inspect();
}
