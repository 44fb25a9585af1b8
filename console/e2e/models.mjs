// A model is found in the list, its replicas are told, and putting it to sleep asks first.
import assert from "node:assert/strict";

export async function run(visit) {
  const { page } = visit;
  await visit.open("models");
  await page.getByRole("table", { name: "Models" }).locator("a.row-link").first().click();
  await page.getByRole("table", { name: "Replicas" }).waitFor();
  const name = decodeURIComponent(visit.here.split("?")[0].replace("models/", ""));
  await visit.title(name);
  await page.getByRole("button", { name: "Sleep" }).click();
  const question = page.getByRole("dialog", { name: `Put ${name} to sleep?` });
  await question.waitFor();
  await visit.inspect();
  await question.getByRole("button", { name: "Cancel" }).click();
  await question.waitFor({ state: "hidden" });
  const replicas = page.getByRole("spinbutton", { name: "Replicas" });
  await replicas.fill("257");
  await page.getByText("0 to 256").waitFor();
  assert.ok(await page.getByRole("button", { name: "Scale" }).isDisabled(), "a number that cannot be asked for");
  await page.getByRole("link", { name: "All models" }).click();
  await visit.title("Models");
}
