// From an empty playground to an answer with Enter; its tokens, another way on from one of them, a second column; found again by its address.
import assert from "node:assert/strict";

export async function run(visit) {
  const { page } = visit;
  visit.provoked = [/status of 40[04]/]; // a request that is refused; one that is not kept yet
  await visit.open("playground");
  await page.waitForFunction(() => document.activeElement?.matches("textarea") && document.activeElement.selectionEnd > document.activeElement.selectionStart);
  await page.keyboard.press("Enter");
  await page.getByText("Why did it take so long?").waitFor();
  await page.locator(".pg-markdown p").filter({ hasText: "platform for serving large language models" }).waitFor();
  assert.match(visit.here, /^playground\/\w+$/, "a conversation is an address");

  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Temperature").fill("3");
  await page.getByText("A number is needed, 0 to 2.").waitFor();
  await page.getByLabel("Temperature").fill("0");
  await page.getByLabel("Probabilities").selectOption("5");
  await page.getByRole("button", { name: "Again" }).click();
  await page.getByText("Tokens and their probabilities").click();
  const tokens = page.getByRole("slider", { name: /arrow keys/ });
  await tokens.press("ArrowRight");
  await visit.inspect();
  await page.locator(".pg-alternatives").getByRole("button").first().click();
  await page.waitForFunction(() => document.querySelector(".pg-answer .pg-figures") && !document.querySelector(".pg-answer[aria-busy]"));
  await page.getByRole("button", { name: "Undo" }).last().click();
  await page.locator(".pg-markdown p").filter({ hasText: "platform for serving large language models" }).waitFor();

  await page.getByRole("button", { name: "Add a column" }).click();
  await page.getByLabel("Send to").selectOption({ index: 2 });
  await page.getByLabel("What to ask").fill("What is a KV cache?");
  await page.keyboard.press("Enter");
  const second = page.getByRole("region", { name: /^Column 2/ });
  await second.getByText("Why did it take so long?").nth(1).waitFor();
  assert.equal(await page.getByRole("region", { name: /^Column 1/ }).getByText("What is a KV cache?").count(), 0, "it was sent to one column");
  await visit.inspect();

  await page.reload();
  await second.getByText("What is a KV cache?").waitFor();
  await page.getByRole("button", { name: "History" }).click();
  await page.getByRole("region", { name: "Conversations" }).getByRole("link", { name: "What is Kvarn?" }).waitFor();
}
