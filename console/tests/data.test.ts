import { describe, expect, it } from "vitest";
import { alone, spread } from "../src/components/chart";
import { cellAt, causes, type Cell } from "../src/components/ribbon";
import { nextSort, sorted, type Column } from "../src/components/table";
import { barPlace, detailPlace, flatten, type Part } from "../src/components/waterfall";
import { errorOf, withQuery } from "../src/lib/api";
import { backoffMs, eventsOf, parseEvents } from "../src/lib/events";

describe("server-sent events", () => {
  it("are read whole, however they are cut", async () => {
    const text = "event: step\r\ndata: {\"a\":\ndata: 1}\n\n: comment\n\ndata: ü\n\n";
    const bytes = new TextEncoder().encode(text);
    for (let cut = 1; cut < bytes.length; cut++) {
      const body = new ReadableStream<Uint8Array>({
        start(controller) {
          controller.enqueue(bytes.slice(0, cut));
          controller.enqueue(bytes.slice(cut));
          controller.close();
        },
      });
      const events = [];
      for await (const event of eventsOf(new Response(body))) events.push(event);
      expect(events).toEqual([{ event: "step", data: '{"a":\n1}' }, { event: "message", data: "ü" }]);
    }
  });
  it("leave an event that is not over", () => {
    expect(parseEvents("data: 1\n\ndata: 2\n")).toEqual({ events: [{ event: "message", data: "1" }], rest: "data: 2\n" });
  });
  it("are asked for again ever later, at most after 15 s", () => {
    expect([0, 1, 9, 1000].map((tries) => backoffMs(tries, () => 0))).toEqual([500, 1000, 15000, 15000]);
    expect(backoffMs(0, () => 1)).toBe(400);
  });
});

describe("errors", () => {
  it("are the gateway's, with the request id", async () => {
    const body = JSON.stringify({ error: { message: "No such key.", code: "key_not_found", type: "invalid_request_error" } });
    const error = await errorOf(new Response(body, { status: 404, headers: { "x-request-id": "req-1", "retry-after": "3" } }));
    expect([error.message, error.code, error.status, error.requestId, error.retryAfterS]).toEqual(["No such key.", "key_not_found", 404, "req-1", 3]);
  });
  it("have a message where a proxy answers with a page", async () => {
    const error = await errorOf(new Response("<html>", { status: 502, statusText: "Bad Gateway" }));
    expect(error.message).toBe("The server answered 502 Bad Gateway.");
  });
});

it("a query leaves out what is not set", () => {
  expect(withQuery("a?b=1", { c: "x y", d: "", e: null, f: 0 })).toBe("a?b=1&c=x+y&f=0");
});

describe("tables", () => {
  const columns: Column<number | null>[] = [{ key: "n", title: "N", cell: String, value: (row) => row }];
  it("sort unknown values last in both directions", () => {
    expect(sorted([2, null, 10], columns, "n")).toEqual([2, 10, null]);
    expect(sorted([2, null, 10], columns, "-n")).toEqual([10, 2, null]);
    expect(sorted([2, 1], columns, "other")).toEqual([2, 1]);
  });
  it("go from largest to smallest to none", () => {
    expect(["", "-n", "n", "m"].map((sort) => nextSort(sort, "n"))).toEqual(["-n", "n", "", "-n"]);
  });
});

describe("the waterfall", () => {
  const inner: Part = { name: "chunk", stage: "prefill", begin_s: 1, end_s: 2 };
  const parts: Part[] = [{ name: "queue", stage: "queue", begin_s: 0, end_s: 1 }, { name: "prefill", stage: "prefill", begin_s: 1, end_s: 4, parts: [inner] }];
  it("shows inner parts where they are opened", () => {
    expect(flatten(parts, new Set()).map(({ part }) => part.name)).toEqual(["queue", "prefill"]);
    expect(flatten(parts, new Set(["/1:prefill"])).map(({ part, depth }) => [part.name, depth])).toEqual([["queue", 0], ["prefill", 0], ["chunk", 1]]);
  });
  it("puts words beside a bar where there is room, else inside", () => {
    const of = (begin: number, end: number) => detailPlace(barPlace(begin, end, 100));
    expect([of(0, 20).place["left"], of(70, 90).place["right"], of(1, 90).inside]).toEqual(["20%", "30%", true]);
  });
  it("draws to scale and never past its end", () => {
    expect([barPlace(1, 2, 4), barPlace(3, 9, 4), barPlace(0, 0, 0)]).toEqual([
      { left: "25%", width: "25%" }, { left: "75%", width: "25%" }, { left: "0%", width: "0%" }]);
  });
});

describe("the ribbon", () => {
  const cells: Cell[] = [[1, 1, "own step"], [1.5, 0.5, "shared with a prompt"], [4, 2.5, "shared with a prompt"]];
  it("finds the token that was being made", () => {
    expect([0, 1, 1.2, 1.5, 3, 9].map((at) => cellAt(cells, at))).toEqual([0, 0, 1, 1, 2, 2]);
  });
  it("sums time by cause, the longest first", () => {
    expect(causes(cells)).toEqual([{ cause: "shared with a prompt", tokens: 2, seconds: 3 }, { cause: "own step", tokens: 1, seconds: 1 }]);
  });
});

it("labels of lines keep their distance and their bounds", () => {
  expect(spread([50, 48, 95], 14, 0, 100)).toEqual([62, 48, 86]);
});

it("finds the values that no line shows", () => {
  expect([alone([null, 3, null, 1, 2, null, 0]), alone([4]), alone([1, 2]), alone([])]).toEqual([[1, 6], [0], [], []]);
});
