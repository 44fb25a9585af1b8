// Below a path of its own, a key signs in and stays nowhere; after signing out nothing is kept or shown, back included.
import assert from "node:assert/strict";

export async function run(visit, { key }) {
  const { page } = visit;
  visit.provoked = [/status of 401/];
  await visit.open("overview?range=6h");
  await visit.title("Sign in to Kvarn");
  await visit.inspect();

  await page.getByLabel("API key").fill(`${key}x`);
  await page.keyboard.press("Enter");
  await page.getByText("You are not signed in.").waitFor();
  await visit.signIn(key);
  await visit.title("Overview");
  assert.equal(visit.here, "overview?range=6h", "the address that was asked for");
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
  assert.ok(!kept.includes(key), "scripts find the key nowhere");

  await page.reload();
  await visit.settled();
  await visit.title("Overview");
  await page.evaluate(() => localStorage.setItem("kvarn-chat:key:1", "{}"));
  await page.locator(".top button").last().click();
  await page.getByRole("menuitem", { name: "Sign out" }).click();
  await visit.title("Sign in to Kvarn");
  assert.deepEqual(await page.evaluate(() => Object.keys(localStorage).filter((name) => name.startsWith("kvarn-chat"))), [], "conversations of the playground go");
  await page.goBack();
  await page.goForward();
  await visit.title("Sign in to Kvarn");
}
