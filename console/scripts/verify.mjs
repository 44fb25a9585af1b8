// Builds into a temporary folder and compares its files with those that the package serves, byte for byte.
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const served = resolve("../src/kvarn/gateway/console/static");
const built = mkdtempSync(join(tmpdir(), "kvarn-console-"));
const list = (folder) =>
  existsSync(folder) ? readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name).slice(folder.length + 1)) : [];
try {
  execFileSync("npx", ["vite", "build", "--logLevel", "warn", "--outDir", built], { stdio: "inherit" });
  const names = new Set([...list(served), ...list(built)]);
  const same = (name) =>
    existsSync(join(served, name)) && existsSync(join(built, name)) &&
    readFileSync(join(served, name)).equals(readFileSync(join(built, name)));
  const different = [...names].filter((name) => !same(name)).sort();
  if (different.length) {
    console.error(`The built console is not what console/src makes: run make console and commit it.\n  ${different.join("\n  ")}`);
    process.exitCode = 1;
  }
} finally {
  rmSync(built, { recursive: true, force: true });
}
