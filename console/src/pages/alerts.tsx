// Alerts: each rule with its state, its value against its threshold, and what to do.
import { useSignal } from "@preact/signals";
import { Badge, Empty, Facts, Loaded, Time, Unknown } from "../components/basics";
import { Table, type Column } from "../components/table";
import { PageHead } from "../frame/head";
import { address, href, live } from "../lib/address";
import { root } from "../lib/api";
import { useStream } from "../lib/events";
import { number } from "../lib/format";
import { useResource } from "../lib/resource";
import { LEVELS, alertSentence, boundText, codeParts, labelText, valueText, type Alerts, type Rule, type Transition } from "./alerts/text";
import "./alerts.css";

export default function AlertsPage() {
  const alerts = useResource<Alerts>("console/api/alerts");
  useStream(live.value ? "console/api/alerts/stream" : null, (event, data) => {
    if (event !== "alerts") return;
    alerts.data.value = data as Alerts;
    alerts.at.value = Date.now() / 1000;
    alerts.error.value = null;
  });
  const told = alerts.data.value;
  const chosen = told?.rules.find((rule) => rule.name === address.value.rest[0]);
  return (
    <>
      <PageHead title="Alerts" streams sentence={told && alertSentence(told)} />
      <Loaded of={alerts} what="The alerts">{(data) => (chosen ? <OneRule rule={chosen} told={data} /> : <AllRules told={data} />)}</Loaded>
    </>
  );
}

const RULES: Column<Rule>[] = [
  { key: "state", title: "State", cell: (row) => <Badge level={LEVELS[row.state] ?? "quiet"}>{row.state}</Badge>, value: (row) => ["ok", "pending", "firing"].indexOf(row.state) },
  { key: "title", title: "Rule", cell: (row) => row.title, value: (row) => row.title, grow: true },
  { key: "severity", title: "Severity", cell: (row) => row.severity, value: (row) => row.severity, line: 0 },
  {
    key: "value", title: "Value now", number: true, line: 2,
    cell: (row) => (row.value === null ? <Unknown why="nothing of it was measured lately" /> : valueText(row.value, row.unit)),
  },
  { key: "bound", title: "Fires at", number: true, line: 2, cell: (row) => boundText(row) },
  { key: "of", title: "Of", cell: (row) => labelText(row.labels), line: 0 },
  { key: "since", title: "Since", cell: (row) => (row.since === null ? <span class="quiet">-</span> : <Time at={row.since} />), value: (row) => row.since, line: 2 },
];

function AllRules({ told }: { told: Alerts }) {
  return (
    <div class="stack">
      <Table label="Rules" columns={RULES} rows={told.rules} rowKey={(row) => row.name} rowHref={(row) => href(`alerts/${encodeURIComponent(row.name)}`)}
        empty={<Empty what="Every rule is switched off (alerts.off): nothing can fire." />} />
      <Transitions told={told} transitions={told.transitions} />
      <Told told={told} />
    </div>
  );
}

function Transitions({ told, transitions }: { told: Alerts; transitions: Transition[] }) {
  const rules = new Map(told.rules.map((rule) => [rule.name, rule]));
  const columns: Column<Transition>[] = [
    { key: "at", title: "When", cell: (row) => <Time at={row.at} />, line: 2 },
    { key: "state", title: "Became", cell: (row) => <Badge level={LEVELS[row.state] ?? "quiet"}>{row.state === "resolved" && !row.fired ? "resolved before it fired" : row.state}</Badge> },
    { key: "rule", title: "Rule", cell: (row) => rules.get(row.rule)?.title ?? row.rule, grow: true },
    { key: "value", title: "Value", number: true, cell: (row) => valueText(row.value, rules.get(row.rule)?.unit ?? ""), line: 2 },
    { key: "of", title: "Of", cell: (row) => labelText(row.labels), line: 2 },
  ];
  return (
    <section class="section">
      <h2>What changed lately</h2>
      <Table label="Transitions" columns={columns} rows={transitions} rowKey={(row) => `${row.at} ${row.rule} ${labelText(row.labels)} ${row.state}`} main={false} sortName="changes"
        empty={<Empty what="Nothing has fired or come near it since this process began to watch." />} />
      <p class="quiet">Watched since <Time at={told.observed_since} absolute /> by the process that answers; what was before is not known here.</p>
    </section>
  );
}

/** Whether anybody is told. */
function Told({ told }: { told: Alerts }) {
  const { webhook } = told;
  if (!webhook && told.webhook_configured) return <p class="quiet">Another gateway process tells the webhook (<code>alerts.webhook_url</code>); what it has taken is known there.</p>;
  if (!webhook) return <p class="quiet">Nobody is told: name a webhook in <code>alerts.webhook_url</code>, or have Prometheus read <code>deploy/prometheus/kvarn.rules.yml</code>.</p>;
  return (
    <p class={webhook.failed_total ? "bad" : "quiet"}>
      The webhook has taken {number(webhook.sent_total)} messages{webhook.failed_total > 0 && `; ${number(webhook.failed_total)} were lost, the last because: ${webhook.last_error ?? "unknown"}`}.
    </p>
  );
}

function Prose({ text }: { text: string }) {
  return <>{codeParts(text).map((part) => (part.code ? <code>{part.text}</code> : part.text))}</>;
}

function OneRule({ rule, told }: { rule: Rule; told: Alerts }) {
  const open = useSignal(false);
  return (
    <div class="stack">
      <p><a href={href("alerts")}>All rules</a></p>
      <section class="section">
        <h2>{rule.title}</h2>
        <Facts facts={[
          ["State", <Badge level={LEVELS[rule.state] ?? "quiet"}>{rule.state}</Badge>],
          ["Value now", rule.value === null ? <Unknown why="nothing of it was measured lately" /> : `${valueText(rule.value, rule.unit)} ${labelText(rule.labels) && `(${labelText(rule.labels)})`}`],
          ["Fires at", boundText(rule)],
          ["Since", rule.since === null ? "-" : <Time at={rule.since} />],
          ["Severity", rule.severity],
        ]} />
      </section>
      <section class="section prose">
        <h2>What it means</h2><p><Prose text={rule.meaning} /></p>
        <h2>Where to look first</h2><p><Prose text={rule.first_look} /></p>
        <h2>What to do</h2><p><Prose text={rule.remedy} /></p>
        <p><a href={`${root}docs/operate/runbook/#${rule.runbook_anchor}`} target="_blank" rel="noopener">The runbook</a></p>
      </section>
      {rule.alerts.length > 0 && (
        <section class="section">
          <h2>Beyond the threshold now</h2>
          <ul class="alerts-now">
            {rule.alerts.map((alert) => <li key={labelText(alert.labels)}><Badge level={LEVELS[alert.state] ?? "quiet"}>{alert.state}</Badge> {alert.summary}, <Time at={alert.since} /></li>)}
          </ul>
          {rule.more_alerts > 0 && <p class="quiet">And {number(rule.more_alerts)} more.</p>}
        </section>
      )}
      <p>
        <button type="button" class="button small" aria-expanded={open.value} onClick={() => (open.value = !open.value)}>{open.value ? "Hide" : "Show"} the expression for Prometheus</button>
      </p>
      {open.value && <pre>{rule.promql}</pre>}
      <Transitions told={told} transitions={told.transitions.filter((each) => each.rule === rule.name)} />
    </div>
  );
}
