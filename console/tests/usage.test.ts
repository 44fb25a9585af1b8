import { describe, expect, it } from "vitest";
import { budgetText, nameOf, spenderLink, usageSentence, widthText, type Usage, type UsageRow } from "../src/pages/usage/text";

const row = (name: string, cost: number, tokens: number, more: Partial<UsageRow> = {}): UsageRow => ({
  id: `id-${name}`, name, detail: "acme", currency: "USD", requests: 1, input_tokens: tokens, cached_tokens: 0, output_tokens: 0, cost, ...more,
});
const usage = (rows: UsageRow[]): Usage => ({
  start: 0, end: 3600, width_s: 300, group: "project", currency: "USD", rows, more_rows: 0, lines: [], names: {},
  buckets: rows.map((each, at) => ({ ...each, at })),
});

describe("the sentence of the usage page", () => {
  it("names who spends most, with their share", () => {
    expect(usageSentence(usage([row("bot", 3, 900), row("search", 1, 100)]), "last hour"))
      .toBe("Acme / bot spent most in the last hour: $3.00 of $4.00 (75 %), 900 of 1,000 tokens.");
  });
  it("goes by tokens where nothing has a price", () => {
    expect(usageSentence(usage([row("bot", 0, 900), row("search", 0, 100)]), "last hour"))
      .toBe("Acme / bot used most in the last hour: 900 of 1,000 tokens (90 %).");
  });
  it("says that there was none", () => {
    expect(usageSentence(usage([]), "last hour")).toBe("No usage in the last hour.");
  });
  it("does not share sums of another currency", () => {
    expect(usageSentence(usage([row("bot", 3, 900, { currency: "EUR" })]), "last hour")).toContain("€3.00, 900 of");
  });
});

it("leads to the next finer group, and to requests without the ledger's user", () => {
  const filters = { project: "p", user: "u" };
  expect(spenderLink(row("k", 1, 1), "key", filters)).toBe("/console/requests?project=p&key=id-k");
  expect(spenderLink(row("", 1, 1, { id: null }), "key", filters)).toBe("/console/requests?project=p");
  expect(spenderLink(row("p", 1, 1), "project", filters)).toBe("/console/usage?project=id-p&user=u&group=key");
});

it("says how wide a step of a chart is", () => {
  expect([3600, 86400, 300].map(widthText)).toEqual(["an hour", "a day", "in 5 min"]);
});

it("names use by no key", () => {
  expect(nameOf(row("", 0, 1, { id: null }), "key")).toBe("no key");
});

it("tells how much of a budget is used", () => {
  expect(budgetText(4.1, 20, "USD")).toBe("$4.10 of $20.00 (21 %)");
  expect(budgetText(1200, 0, null)).toBe("1,200 tokens of 0 tokens");
  expect(budgetText(1200, null, null)).toBe("1,200 tokens, no hard limit");
});
