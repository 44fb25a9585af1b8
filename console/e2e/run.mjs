// Runs scenarios in one Chromium: each line on standard input is one, each line on standard output what became of it.
//   {"scenario": "pages", "server": "http://127.0.0.1:8000", "given": {…}}  ->  {"ok": false, "error": "…", "seconds": 1.2}
// A scenario is a file here that exports `run(visit, given)`; what it returns is in the answer as `told`.
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { launch, Visit } from "./lib/browser.mjs";

const LIMIT_MS = 240_000;
const browser = await launch();

async function outcome({ scenario, server, given }) {
  const began = performance.now();
  const visit = await Visit.begin(browser, server);
  let answer;
  let late;
  try {
    const { run } = await import(`./${scenario}.mjs`);
    const end = new Promise((_, fail) => (late = setTimeout(() => fail(new Error(`not over within ${LIMIT_MS / 1000} s`)), LIMIT_MS)));
    const told = await Promise.race([run(visit, given), end]);
    answer = visit.findings.length ? { ok: false, error: visit.findings.join("\n") } : { ok: true, told };
  } catch (error) {
    const picture = join(mkdtempSync(join(tmpdir(), "kvarn-console-")), `${scenario.replace(/\W/g, "-")}.png`);
    await visit.page.screenshot({ path: picture }).catch(() => undefined);
    answer = { ok: false, error: [`at ${visit.page.url()} (${picture})`, error.stack, ...visit.findings].join("\n") };
  } finally {
    clearTimeout(late);
    await visit.end();
  }
  return { ...answer, seconds: (performance.now() - began) / 1000 };
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await outcome(JSON.parse(line)))}\n`);
}
await browser.close();
