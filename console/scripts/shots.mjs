// Screenshots of pages in both themes and widths, and what axe and the browser's console find in them.
// Usage: npm run shots -- http://127.0.0.1:8000 FOLDER overview 'requests?status=error' ...
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [server, folder, ...pages] = process.argv.slice(2);
if (!server || !folder || !pages.length) {
  console.error("usage: npm run shots -- SERVER FOLDER PAGE ...   (KVARN_KEY signs in, CHROMIUM names the browser)");
  process.exit(2);
}
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const profile = mkdtempSync(join(tmpdir(), "kvarn-shots-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
let findings = 0;
const found = (text) => {
  findings += 1;
  console.log(text);
};

mkdirSync(folder, { recursive: true });
try {
  const tab = await context.newPage();
  const session = await context.newCDPSession(tab); // it may add axe, which the page's security policy forbids a script to do
  let now = "";
  tab.on("console", (message) => ["error", "warning"].includes(message.type()) && found(`${now}: console: ${message.text()}`));
  tab.on("pageerror", (error) => found(`${now}: ${error.message}`));
  if (process.env.KVARN_KEY) {
    await tab.goto(new URL("console/", `${server.replace(/\/$/, "")}/`).href);
    await tab.getByLabel("API key").fill(process.env.KVARN_KEY);
    await tab.keyboard.press("Enter");
    await tab.waitForSelector(".rail");
  }
  for (const page of pages) {
    for (const [width, height] of [[1280, 900], [390, 844]]) {
      for (const colorScheme of ["light", "dark"]) {
        now = `${page} ${width} ${colorScheme}`;
        await tab.setViewportSize({ width, height });
        await tab.emulateMedia({ colorScheme });
        await tab.goto(new URL(`console/${page}`, `${server.replace(/\/$/, "")}/`).href);
        await tab.waitForSelector("h1");
        await tab.waitForFunction(() => !document.querySelector("[aria-busy=true]"));
        await tab.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
        const name = `${page.replace(/[^\w-]+/g, "-")}-${width}-${colorScheme}.png`;
        await tab.screenshot({ path: join(folder, name), fullPage: width > 400 });
        const wider = await tab.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        if (wider > 0) found(`${now}: the page is ${wider} pixels wider than the window`);
        await session.send("Runtime.evaluate", { expression: axe });
        const { result } = await session.send("Runtime.evaluate", {
          expression: "axe.run(document, { resultTypes: ['violations'] }).then((all) => JSON.stringify(all.violations.map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | ')}`)))",
          awaitPromise: true,
        });
        for (const violation of JSON.parse(result.value)) found(`${now}: axe: ${violation}`);
      }
    }
  }
} finally {
  await context.close();
  rmSync(profile, { recursive: true, force: true });
}
console.log(`${pages.length * 4} screenshots in ${folder}, ${findings} findings`);
process.exit(findings ? 1 : 0);
