// What an administrator does: makes a key and revokes it, sets a limit, changes a budget, sees who uses most, and what fires.
import assert from "node:assert/strict";

export async function run(visit) {
  const { page } = visit;
  await visit.open("access");
  await page.getByLabel("Name of a new key").fill("ci-walk");
  await page.getByRole("button", { name: "Make key" }).click();
  assert.match((await page.locator(".secret code").textContent()) ?? "", /^kv-/, "the secret is shown");
  await page.getByRole("button", { name: "Revoke ci-walk" }).click();
  const question = page.getByRole("dialog", { name: "Revoke key ci-walk?" });
  await question.getByText("Nothing has used it yet.").waitFor();
  await question.getByRole("button", { name: "Revoke" }).click();
  await page.getByRole("button", { name: "Revoke ci-walk" }).waitFor({ state: "detached" });
  await page.reload();
  await visit.settled();
  assert.equal(await page.locator(".secret").count(), 0, "it is shown once");

  await visit.open("access?tab=limits");
  const row = page.getByRole("row", { name: /all models/ });
  await row.getByLabel("Requests a minute, *").fill("6000");
  await row.getByRole("button", { name: "Save" }).click();
  await page.getByText("Limits for all models hold now.").waitFor();
  await page.reload();
  await visit.settled();
  assert.equal(await row.getByLabel("Requests a minute, *").inputValue(), "6000", "it is in force");

  await visit.open("access?tab=budgets");
  await page.getByLabel("Alert from").fill("0.5");
  await page.getByRole("button", { name: "Make budget" }).click();
  await page.getByRole("button", { name: /^Change the budget of/ }).click();
  await page.getByLabel(/^Alert from \(/).fill("0.25");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("The new limits hold now.").waitFor();
  await visit.inspect();

  await visit.open("access?tab=users");
  await page.getByLabel("E-mail of a new user").fill("mira@example.com");
  await page.getByRole("button", { name: "Add user" }).click();
  await page.getByText("mira@example.com is added.").waitFor();
  await visit.open("access?tab=members");
  await page.getByLabel("E-mail of a user").fill("mira@example.com");
  await page.getByRole("button", { name: /^Add to/ }).click();
  await page.getByRole("button", { name: "Take mira out" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Take out" }).click();
  await page.getByRole("button", { name: "Take mira out" }).waitFor({ state: "detached" });

  const made = await page.request.post(new URL("v1/conversations", visit.root).href, {
    data: { metadata: { topic: "a late battery" }, items: [{ type: "message", role: "user", content: "Where is my battery?" }] },
  });
  assert.ok(made.ok());
  await visit.open("access?tab=conversations");
  await page.getByRole("row", { name: /a late battery/ }).getByRole("link").click();
  await page.getByText("Where is my battery?").waitFor();
  await visit.inspect();

  await visit.open("access?tab=audit&event=api_key.created");
  await page.getByText("API key created").first().waitFor();
  await visit.inspect();

  await visit.open("usage?range=24h");
  await page.getByText(/used most in the last 24 hours|No usage in the last 24 hours/).waitFor();
  await page.getByLabel("Group by").selectOption("model");
  assert.match(visit.here, /group=model/);
  await visit.open("alerts");
  await page.getByRole("row", { name: /The KV cache is more than/ }).waitFor();
  await page.locator("a.row-link").first().click();
  await page.getByRole("heading", { name: "What to do" }).waitFor();
  await visit.open("quality");
  await visit.title("Quality");
}
