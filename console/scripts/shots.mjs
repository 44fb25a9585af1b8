// Screenshots of pages in both themes and widths, and what axe and the browser's console find in them.
// Usage: npm run shots -- http://127.0.0.1:8000 FOLDER overview 'requests?status=error' slow=requests/req-1 ...
// The part before `=` names the pictures of a page. KVARN_KEY signs in, CHROMIUM names the browser.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { launch, PHONE, Visit, WIDE } from "../e2e/lib/browser.mjs";

const [server, folder, ...pages] = process.argv.slice(2);
if (!server || !folder || !pages.length) {
  console.error("usage: npm run shots -- SERVER FOLDER PAGE ...   (KVARN_KEY signs in, CHROMIUM names the browser)");
  process.exit(2);
}
mkdirSync(folder, { recursive: true });

/** What is done on a page before its picture is taken. */
const FIRST = {
  playground: async ({ page }) => {
    const asked = page.getByLabel("What to ask");
    await asked.fill("What is continuous batching?");
    await asked.press("Enter");
    await page.getByText(/\. Why did it take so long\?$/).waitFor(); // the sentence comes when the request is kept
  },
};

const browser = await launch();
const visit = await Visit.begin(browser, server);
try {
  if (process.env.KVARN_KEY) {
    await visit.open("");
    await visit.signIn(process.env.KVARN_KEY);
  }
  for (const each of pages) {
    const [, given, path] = each.match(/^(?:([\w-]+)=)?(.*)$/);
    const name = given ?? path.replace(/[^\w-]+/g, "-");
    for (const size of [WIDE, PHONE]) {
      for (const colorScheme of ["light", "dark"]) {
        await visit.page.setViewportSize(size);
        await visit.page.emulateMedia({ colorScheme });
        await visit.open(path);
        visit.now = `${name} ${size.width} ${colorScheme}`;
        if (FIRST[path]) await FIRST[path](visit);
        await visit.settled();
        await visit.page.screenshot({ path: join(folder, `${name}-${size.width}-${colorScheme}.png`), fullPage: size === WIDE });
        if (size === WIDE) await visit.page.screenshot({ path: join(folder, `${name}-${colorScheme}.png`) }); // for docs
        await visit.inspect();
      }
    }
  }
} finally {
  await browser.close();
}
for (const finding of visit.findings) console.log(finding);
console.log(`${pages.length * 4} screenshots in ${folder}, ${visit.findings.length} findings`);
process.exit(visit.findings.length ? 1 : 0);
