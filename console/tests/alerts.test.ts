import { expect, it } from "vitest";
import { alertSentence, boundText, codeParts, labelText, valueText, type Alerts, type Rule } from "../src/pages/alerts/text";

const rule = (state: Rule["state"], title = "The KV cache is full"): Rule => ({
  name: "KvarnKvCacheFull", severity: "P1", title, state, since: 0, value: 0.97, labels: {}, comparison: ">", threshold: 0.95, unit: "ratio", for_s: 300,
  promql: "", meaning: "", first_look: "", remedy: "", runbook_anchor: "", more_alerts: 0,
  alerts: state === "ok" ? [] : [{ labels: {}, state, since: 0, value: 0.97, summary: `${title}: 97 %, model chat` }],
});
const told = (...rules: Rule[]): Alerts => ({ enabled: true, evaluated_at: 1, observed_since: 0, rules, transitions: [], webhook_configured: false, webhook: null });

it("names what fires, and how many others do", () => {
  const { text, level } = alertSentence(told(rule("firing"), rule("firing"), rule("ok")));
  expect(level).toBe("bad");
  expect(text).toMatch(/^The KV cache is full: 97 %, model chat, since \d\d:\d\d\. 1 other rule fires, too\.$/);
});

it("tells pending from firing, and both from nothing", () => {
  expect(alertSentence(told(rule("pending"), rule("ok"))).text).toMatch(/^Nothing fires; one rule is beyond/);
  expect(alertSentence(told(rule("ok"))).text).toBe("Nothing fires: none of 1 rule is beyond its threshold.");
  expect(alertSentence({ ...told(rule("ok")), evaluated_at: null }).level).toBe("quiet");
  expect(alertSentence({ ...told(), enabled: false }).level).toBe("warn");
});

it("writes values in their units", () => {
  expect([valueText(300, "seconds"), valueText(0.3, "ratio"), valueText(0, "count"), valueText(null, "ratio")]).toEqual(["5 min", "30 %", "0", "-"]);
  expect(boundText(rule("ok"))).toBe("> 95 % for 5 min");
  expect(labelText({ model: "chat", replica_id: "1" })).toBe("model chat, replica id 1");
});

it("tells code in a text", () => {
  expect(codeParts("More `kv_cache_gib`, or less.")).toEqual([
    { text: "More ", code: false }, { text: "kv_cache_gib", code: true }, { text: ", or less.", code: false },
  ]);
});
