import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "fflate";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

/** Writes NAME.gz beside each script and style sheet, once they are written: Vite completes its scripts after other
 * plugins have seen them. fflate's bytes are the same on every machine; zlib's are not. */
function compressed(): Plugin {
  return {
    name: "compressed",
    apply: "build",
    writeBundle({ dir = "" }, bundle) {
      for (const name of Object.keys(bundle).filter((name) => /\.(js|css)$/.test(name))) {
        const file = join(dir, name);
        writeFileSync(`${file}.gz`, gzipSync(readFileSync(file), { level: 9, mtime: 0 }));
      }
    },
  };
}

/** Names the console's root in the page while it is developed; the gateway does so where it is served. */
function base(): Plugin {
  return {
    name: "base",
    apply: "serve",
    transformIndexHtml: () => [{ tag: "base", attrs: { href: "/console/" }, injectTo: "head-prepend" }],
  };
}

// A kvarn server that the development server asks for data.
const server = process.env["KVARN_URL"] ?? "http://127.0.0.1:8000";

export default defineConfig(({ command }) => ({
  // Built files are asked for relative to the page, so that any root path works.
  base: command === "build" ? "./" : "/console/",
  plugins: [compressed(), base()],
  build: {
    outDir: process.env["CONSOLE_OUT"] ?? "../src/kvarn/gateway/console/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // the content security policy allows no data: addresses
    modulePreload: { polyfill: false }, // the polyfill would be an inline script
    sourcemap: false,
    reportCompressedSize: false,
  },
  server: { proxy: { "/console/api": server, "/v1": server, "/health": server } },
  test: { include: ["tests/**/*.test.ts"], environment: "node" },
}));
