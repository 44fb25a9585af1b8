"""Rules about the objects around the chart's pods: services, access, network, scaling. See `chart_policies`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from chart import ROOT, Object, Rendered, name_of
from chart_policies import policy

_METRICS = ROOT / "docs" / "reference" / "metrics.md"
_LAUNCHER_VERBS = {"create", "delete", "get", "list", "watch"}


@policy
def evictions_take_one_pod_at_a_time_and_never_none(rendered: Rendered) -> Iterator[str]:
    budgets = rendered.of("PodDisruptionBudget")
    for workload in rendered.workloads():
        own = [each for each in budgets if rendered.selected(each["spec"]["selector"]) == [workload]]
        if len(own) != 1:
            yield f"{name_of(workload)} has {len(own)} disruption budgets of its own"
        elif own[0]["spec"].get("maxUnavailable") != 1:
            yield f"{name_of(own[0])} lets {own[0]['spec'].get('maxUnavailable')} pods go"


@policy
def selectors_find_their_own_pods_and_no_others(rendered: Rendered) -> Iterator[str]:
    for workload in rendered.workloads():
        if rendered.selected(workload["spec"]["selector"]) != [workload]:
            yield f"{name_of(workload)} selects other pods, or not its own"
        for constraint in workload["spec"]["template"]["spec"].get("topologySpreadConstraints", []):
            if rendered.selected(constraint["labelSelector"]) != [workload]:
                yield f"{name_of(workload)} spreads the pods of others"
        if workload["kind"] == "StatefulSet" and workload["spec"]["serviceName"] not in _names(rendered, "Service"):
            yield f"{name_of(workload)} has no service"
    for service in rendered.of("Service"):
        if len(rendered.selected(service["spec"]["selector"])) != 1:
            yield f"{name_of(service)} leads to no pods, or to those of several kinds"


@policy
def several_pods_are_spread(rendered: Rendered) -> Iterator[str]:
    for workload, pod, _ in rendered.containers():
        over = {each["topologyKey"] for each in pod.get("topologySpreadConstraints", [])}
        if "kubernetes.io/hostname" not in over:
            yield f"{name_of(workload)} may have all its pods on one node"


@policy
def servers_of_one_address_share_a_database(rendered: Rendered) -> Iterator[str]:
    for workload, _, container in rendered.containers():
        if workload["metadata"]["labels"]["app.kubernetes.io/component"] == "engine":
            continue  # behind gateways, each with a database of its own
        is_scaled = workload["spec"].get("replicas") != 1
        has_url = "url" in rendered.settings(workload).get("store", {})
        if is_scaled and not has_url and "KVARN_STORE__URL_FILE" not in [each["name"] for each in container["env"]]:
            yield f"{name_of(workload)} has several servers, each with a database of its own"


@policy
def kubernetes_may_be_asked_only_for_pods_by_those_that_make_some(rendered: Rendered) -> Iterator[str]:
    if found := rendered.of("ClusterRole", "ClusterRoleBinding"):
        yield f"{name_of(found[0])} reaches beyond the namespace"
    makes_pods = False
    for workload, pod, _ in rendered.containers():
        needs_token = rendered.settings(workload).get("fleet", {}).get("launcher") == "kubernetes"
        makes_pods |= needs_token
        if pod.get("automountServiceAccountToken") is not needs_token:
            yield f"{name_of(workload)} has a token it does not need, or lacks one"
        if pod["serviceAccountName"] not in _names(rendered, "ServiceAccount"):
            yield f"{name_of(workload)} has no service account"
    for role in rendered.of("Role"):
        for rule in role["rules"]:
            if rule["apiGroups"] != [""] or rule["resources"] != ["pods"] or not set(rule["verbs"]) <= _LAUNCHER_VERBS:
                yield f"{name_of(role)} allows {rule}"
    if makes_pods is not bool(rendered.of("Role")):
        yield "there is a role without need, or none where one is needed"
    for binding in rendered.of("RoleBinding"):
        if binding["roleRef"]["name"] not in _names(rendered, "Role"):
            yield f"{name_of(binding)} binds nothing"


@policy
def every_pod_has_a_network_policy_that_lets_prometheus_in(rendered: Rendered) -> Iterator[str]:
    for workload in rendered.workloads():
        own = [
            each for each in rendered.of("NetworkPolicy") if workload in rendered.selected(each["spec"]["podSelector"])
        ]
        if not own:
            yield f"{name_of(workload)} may be reached at every port"
            continue
        if any("Ingress" not in each["spec"]["policyTypes"] for each in own):
            yield f"{name_of(workload)} may be reached at every port"
        rules = [rule for each in own for rule in each["spec"]["ingress"]]
        if not any(_lets_in_prometheus(rule) for rule in rules):
            yield f"{name_of(workload)} shuts Prometheus out"
        if workload["metadata"]["labels"]["app.kubernetes.io/component"] == "engine" and not all(map(_peers, rules)):
            yield f"{name_of(workload)} may be asked past its gateways"


@policy
def what_scales_has_something_to_scale_and_a_metric(rendered: Rendered) -> Iterator[str]:
    described = set(re.findall(r"`(kvarn_\w+)`", _METRICS.read_text()))
    scaled = set()
    for scaler in rendered.of("HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        scaled.add((target["kind"], target["name"]))
        for metric in re.findall(r"\bkvarn_\w+", str(scaler["spec"])):
            if metric not in described:
                yield f"{name_of(scaler)} goes by {metric}, which nothing counts"
    there = {(each["kind"], each["metadata"]["name"]): each for each in rendered.workloads()}
    for missing in sorted(scaled - there.keys()):
        yield f"{missing} is scaled and is not there"
    for key, workload in there.items():
        if (key in scaled) is ("replicas" in workload["spec"]):
            yield f"{name_of(workload)} has a fixed number of pods and a scaler, or neither"


@policy
def a_rolling_update_never_has_fewer_gateways(rendered: Rendered) -> Iterator[str]:
    for workload in rendered.of("Deployment"):
        update = workload["spec"].get("strategy", {}).get("rollingUpdate", {})
        if update.get("maxUnavailable") != 0 or not update.get("maxSurge"):
            yield f"{name_of(workload)} is replaced by {update}"


@policy
def objects_have_the_usual_labels_and_short_names(rendered: Rendered) -> Iterator[str]:
    usual = {f"app.kubernetes.io/{each}" for each in ("name", "instance", "version", "managed-by")} | {"helm.sh/chart"}
    for each in rendered.objects:
        if missing := usual - each["metadata"].get("labels", {}).keys():
            yield f"{name_of(each)} has no labels {sorted(missing)}"
        if len(each["metadata"]["name"]) > 52:  # a StatefulSet's pods have labels with ten characters more
            yield f"{name_of(each)} has a name that is too long"


def _names(rendered: Rendered, kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in rendered.of(kind)}


def _peers(rule: Object) -> list[Any]:
    return rule.get("from", [])


def _lets_in_prometheus(rule: Object) -> bool:
    if {"port": "http"} not in rule.get("ports", [{"port": "http"}]):
        return False
    names = [each.get("namespaceSelector", {}).get("matchLabels", {}) for each in _peers(rule)]
    return not _peers(rule) or {"kubernetes.io/metadata.name": "monitoring"} in names
