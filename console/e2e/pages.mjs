// Every page opens in both themes and widths: nothing in the browser's console, nothing that axe finds.
import { PHONE, WIDE } from "./lib/browser.mjs";

export async function run(visit, { pages }) {
  for (const name of pages) {
    await visit.page.emulateMedia({ colorScheme: "light" });
    await visit.page.setViewportSize(WIDE);
    await visit.open(name);
    await visit.inspect();
    await visit.page.emulateMedia({ colorScheme: "dark" });
    visit.now = `${name}, dark`;
    await visit.inspect(["color-contrast"]);
    await visit.page.setViewportSize(PHONE);
    await visit.open(name);
    visit.now = `${name}, dark, ${PHONE.width} px`;
    await visit.inspect();
    await visit.page.emulateMedia({ colorScheme: "light" });
    visit.now = `${name}, ${PHONE.width} px`;
    await visit.inspect(["color-contrast"]);
  }
}
