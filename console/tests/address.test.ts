import { describe, expect, it } from "vitest";
import { belowRoot, formatAddress, href, parseAddress, withChanges } from "../src/lib/address";

describe("the address", () => {
  it("is read back as it was written, whatever the names hold", () => {
    const query = new URLSearchParams({ status: "error", q: "a b&c=ü?#" });
    const read = parseAddress(formatAddress("requests", ["req-1/2 %"], query).slice("/console/".length));
    expect([read.page, read.rest, [...read.query]]).toEqual(["requests", ["req-1/2 %"], [...query]]);
  });
  it("names the overview where it names nothing", () => {
    expect(["", "/", "?range=6h", "#x"].map((hash) => parseAddress(hash).page)).toEqual(Array(4).fill("overview"));
  });
  it("survives a lone per cent sign", () => {
    expect(parseAddress("requests/50%").rest).toEqual(["50%"]);
  });
  it("keeps range, model and live on the way to another page, and no filter of this one", () => {
    const from = parseAddress("requests?status=error&range=6h&model=chat");
    expect(href("usage?by=key", {}, from)).toBe("/console/usage?by=key&range=6h&model=chat");
    expect(href("usage?range=24h", { model: null }, from)).toBe("/console/usage?range=24h");
  });
  it("is the console's only below its root", () => {
    const of = (pathname: string, search = "") => belowRoot({ pathname, search });
    expect([of("/console"), of("/console/requests/1", "?a=1"), of("/v1/models"), of("/console2/x")]).toEqual(["", "requests/1?a=1", null, null]);
  });
  it("has no parameter without a value", () => {
    expect(withChanges(new URLSearchParams("a=1&b=2"), { a: null, b: "", c: 0, d: true, e: false }).toString()).toBe("c=0&d=1");
  });
});
