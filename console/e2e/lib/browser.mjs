// Chromium, and one tab of it that notices everything a page complains about.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const AXE_SHOWN = 3;

export const WIDE = { width: 1280, height: 900 };
export const PHONE = { width: 390, height: 844 };

export const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ARGS });

/** A tab with cookies of its own. `findings` are errors and warnings of the page, its policy's reports too. */
export class Visit {
  findings = [];
  /** Findings that a scenario provokes. */
  provoked = [];
  now = "";

  static async begin(browser, server, options = {}) {
    const context = await browser.newContext({ viewport: WIDE, colorScheme: "light", reducedMotion: "reduce", ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(60_000);
    return new Visit(context, page, await context.newCDPSession(page), server);
  }

  constructor(context, page, session, server) {
    Object.assign(this, { context, page, session });
    this.root = `${server.replace(/\/$/, "")}/`;
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && this.#found(`console: ${message.text()}`));
    page.on("pageerror", (error) => this.#found(error.stack ?? error.message));
  }

  #found(text) {
    if (!this.provoked.some((pattern) => pattern.test(text))) this.findings.push(`${this.now}: ${text}`);
  }

  address(path) {
    return new URL(`console/${path}`, this.root).href;
  }

  /** Loads a page of the console (`requests?status=5xx`) and waits until it shows its data. */
  async open(path) {
    this.now = path;
    await this.page.goto(this.address(path));
    await this.settled();
  }

  /** Waits until the page has a title and loads nothing, and has been drawn so. */
  async settled() {
    await this.page.waitForSelector("h1");
    await this.page.waitForFunction(() => !document.querySelector("[aria-busy=true]"));
    await this.page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
  }

  /** Path and query below `console/`. */
  get here() {
    return this.page.url().slice(this.address("").length);
  }

  async title(expected) {
    await this.page.getByRole("heading", { level: 1, name: expected }).waitFor();
  }

  async signIn(key) {
    await this.page.getByLabel("API key").fill(key);
    await this.page.keyboard.press("Enter");
    await this.page.waitForSelector(".rail");
    await this.settled();
  }

  /** Adds to the findings what axe finds, and whether the page is wider than the window. `rules`: only these. */
  async inspect(rules) {
    const wider = await this.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (wider > 0) this.#found(`the page is ${wider} pixels wider than the window`);
    // Through the debugger: the page's security policy allows no script to add one.
    await this.session.send("Runtime.evaluate", { expression: `if (!window.axe) { ${axe} }` });
    const options = JSON.stringify({ resultTypes: ["violations"], ...(rules ? { runOnly: { type: "rule", values: rules } } : {}) });
    const expression = `axe.run(document, ${options}).then((all) => JSON.stringify(all.violations.map((one) =>
      [one.impact, one.id, one.help, one.nodes.slice(0, ${AXE_SHOWN}).map((node) => node.html.slice(0, 160)).join(" | ")].join(": "))))`;
    const { result, exceptionDetails } = await this.session.send("Runtime.evaluate", { expression, awaitPromise: true });
    assert.equal(exceptionDetails, undefined, exceptionDetails?.exception?.description);
    for (const violation of JSON.parse(result.value)) this.#found(`axe: ${violation}`);
  }

  async end() {
    await this.context.close();
  }
}
