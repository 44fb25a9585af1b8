// Bounds what a browser loads: everything, the first view, and each page that is loaded when it is opened.
import { readFileSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { gunzipSync } from "node:zlib";

const STATIC = process.env.CONSOLE_OUT ?? "../src/kvarn/gateway/console/static";
const LIMITS = { total: 400_000, first: 130_000, page: 60_000 };

const assets = join(STATIC, "assets");
const size = (name) => statSync(join(assets, name)).size;
const plain = readdirSync(assets).filter((name) => !name.endsWith(".gz"));
const html = readFileSync(join(STATIC, "index.html"), "utf8");
// What the page names, and the page that is shown first with all that it imports.
const first = new Set(plain.filter((name) => html.includes(name) || name.startsWith("overview-")));
for (const name of first) {
  if (!name.endsWith(".js")) continue;
  const text = readFileSync(join(assets, name), "utf8");
  for (const [, imported] of text.matchAll(/(?:from|import)\s*"\.\/([^"]+)"/g)) first.add(imported);
}
const total = statSync(join(STATIC, "index.html")).size + plain.reduce((sum, name) => sum + size(name), 0);
const firstView = [...first].reduce((sum, name) => sum + size(`${name}.gz`), 0);

const problems = [];
const line = (what, bytes, limit) => {
  console.log(`${what.padEnd(44)} ${String(bytes).padStart(8)} of ${limit} bytes`);
  if (bytes > limit) problems.push(`${what} has ${bytes} bytes; ${limit} are allowed`);
};
line("everything, raw", total, LIMITS.total);
line("first view, gzip", firstView, LIMITS.first);
for (const name of plain.filter((name) => !first.has(name))) line(`${name}, gzip`, size(`${name}.gz`), LIMITS.page);
for (const name of plain) {
  const whole = readFileSync(join(assets, name));
  if (!gunzipSync(readFileSync(join(assets, `${name}.gz`))).equals(whole)) problems.push(`${name}.gz does not hold ${name}`);
  if (/sourceMappingURL/.test(whole)) problems.push(`${name} names a source map`);
}
for (const problem of problems) console.error(problem);
process.exit(problems.length ? 1 : 0);
