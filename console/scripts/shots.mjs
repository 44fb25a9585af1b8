// Screenshots of pages in both themes and widths, and what axe and the browser's console find in them.
// Usage: npm run shots -- http://127.0.0.1:8000 FOLDER overview 'requests?status=error' slow=requests/req-1 ...
// The part before `=` names the pictures of a page. KVARN_KEY signs in, CHROMIUM names the browser.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { launch, PHONE, Visit, WIDE } from "../e2e/lib/browser.mjs";

const [server, folder, ...pages] = process.argv.slice(2);
if (!server || !folder || !pages.length) {
  console.error("usage: npm run shots -- SERVER FOLDER PAGE ...   (KVARN_KEY signs in, CHROMIUM names the browser)");
  process.exit(2);
}
mkdirSync(folder, { recursive: true });

const QUALITY = 70;

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
        const picture = join(folder, `${name}-${size.width}-${colorScheme}`);
        await visit.page.screenshot({ path: `${picture}.png`, fullPage: size === WIDE }); // to look at
        const { data } = await visit.session.send("Page.captureScreenshot", { format: "webp", quality: QUALITY });
        writeFileSync(`${picture}.webp`, Buffer.from(data, "base64")); // for docs: what is seen without scrolling
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
