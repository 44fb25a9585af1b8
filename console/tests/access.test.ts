import { expect, it } from "vitest";
import { actorText, eventText, objectOf, type AuditEntry } from "../src/pages/access/audit-text";
import { UNLIMITED, limitOf, limitText, revocationText } from "../src/pages/access/change";

it("tells what a revocation stops", () => {
  expect(revocationText(3, 100, 120)).toMatch(/^3 requests used it in the last minute\./);
  expect(revocationText(1, 100, 120)).toMatch(/^1 request used it/);
  expect(revocationText(0, 100, 400)).toMatch(/the last request came 5 min ago\./);
  expect(revocationText(0, null, 400)).toMatch(/^Nothing has used it yet\./);
  expect(revocationText(null, null, 400)).toMatch(/is not known\./);
});

it("reads limits as they are typed", () => {
  expect([limitOf(""), limitOf(" 60 "), limitOf("0"), limitOf("1.5"), limitOf("many")]).toEqual([null, 60, NaN, NaN, NaN]);
  expect([limitText(UNLIMITED), limitText(60)]).toEqual(["", "60"]);
});

it("reads entries of the audit log", () => {
  const entry: AuditEntry = {
    id: "audit_log-1", type: "api_key.created", effective_at: 0, "api_key.created": { id: "key_1", data: { name: "ci" } },
    actor: { type: "api_key", name: "ops", api_key: { id: "key_0", user: { email: "mira@example.com" } } },
  };
  expect(eventText("deployment.rolled_back")).toBe("Deployment rolled back");
  expect(eventText(entry.type)).toBe("API key created");
  expect(actorText(entry)).toBe("mira@example.com, with key ops");
  expect(objectOf(entry)).toEqual({ id: "key_1", data: { name: "ci" } });
  expect(objectOf({ ...entry, type: "other" })).toEqual({ id: "" });
});
