"""The chart's objects keep our rules, in each value set; and each rule is broken by an object that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import chart_object_policies  # noqa: F401  it adds its rules
from chart import VALUE_SETS, Object, Rendered, render_set
from chart_policies import POLICIES

Breakage = Callable[[Rendered], Any]


def _pod(rendered: Rendered) -> Object:
    spec: Object = rendered.workloads()[0]["spec"]["template"]["spec"]
    return spec


def _container(rendered: Rendered) -> Object:
    container: Object = _pod(rendered)["containers"][0]
    return container


def _first(kind: str, rendered: Rendered) -> Object:
    return rendered.of(kind)[0]


def _without(kind: str, rendered: Rendered) -> None:
    rendered.objects[:] = [each for each in rendered.objects if each["kind"] != kind]


BREAKAGES: list[tuple[str, str, Breakage]] = [
    ("pods_run_as_an_ordinary_user", "default", lambda r: _pod(r)["securityContext"].update(runAsUser=0)),
    ("pods_run_as_an_ordinary_user", "default", lambda r: _container(r)["securityContext"].update(runAsNonRoot=False)),
    ("containers_have_no_privileges", "default", lambda r: _container(r).pop("securityContext")),
    ("containers_have_no_privileges", "gpu", lambda r: _pod(r).update(hostIPC=True)),
    ("containers_have_no_privileges", "default", lambda r: _pod(r)["securityContext"].pop("seccompProfile")),
    ("what_is_written_lies_in_volumes", "default", lambda r: _container(r)["securityContext"].clear()),
    ("what_is_written_lies_in_volumes", "default", lambda r: _container(r)["volumeMounts"][1].update(readOnly=True)),
    ("volumes_and_mounts_agree", "default", lambda r: _container(r)["volumeMounts"].pop()),
    ("volumes_and_mounts_agree", "default", lambda r: _pod(r)["volumes"][0].update(hostPath={"path": "/"})),
    (
        "resources_are_requested_and_memory_is_limited",
        "default",
        lambda r: _container(r)["resources"]["limits"].pop("memory"),
    ),
    (
        "resources_are_requested_and_memory_is_limited",
        "launcher",
        lambda r: _container(r)["resources"]["requests"].pop("cpu"),
    ),
    (
        "probes_ask_paths_of_the_gateway_that_need_no_key",
        "default",
        lambda r: _container(r)["startupProbe"]["httpGet"].update(path="/healthz"),
    ),
    (
        "probes_mean_what_they_say",
        "default",
        lambda r: _container(r)["livenessProbe"]["httpGet"].update(path="/ready"),
    ),
    ("probes_mean_what_they_say", "default", lambda r: _container(r)["startupProbe"].update(failureThreshold=3)),
    ("ports_agree", "default", lambda r: _container(r)["ports"][0].update(containerPort=80)),
    ("ports_agree", "tls", lambda r: _container(r)["livenessProbe"]["httpGet"].pop("scheme")),
    ("ports_agree", "default", lambda r: _first("Service", r)["spec"]["ports"][0].update(targetPort="https")),
    (
        "a_server_that_is_stopped_answers_until_nobody_asks",
        "default",
        lambda r: _first("ConfigMap", r)["data"].update({"kvarn.yaml": "gateway: {port: 8000}"}),
    ),
    ("running_requests_may_finish", "default", lambda r: _pod(r).update(terminationGracePeriodSeconds=30)),
    ("evictions_take_one_pod_at_a_time_and_never_none", "groups", lambda r: _without("PodDisruptionBudget", r)),
    (
        "evictions_take_one_pod_at_a_time_and_never_none",
        "default",
        lambda r: _first("PodDisruptionBudget", r)["spec"].update(maxUnavailable=0),
    ),
    (
        "selectors_find_their_own_pods_and_no_others",
        "groups",
        lambda r: _first("Service", r)["spec"]["selector"].pop("app.kubernetes.io/component"),
    ),
    (
        "selectors_find_their_own_pods_and_no_others",
        "default",
        lambda r: _first("StatefulSet", r)["spec"].update(serviceName="other"),
    ),
    ("several_pods_are_spread", "available", lambda r: _pod(r).pop("topologySpreadConstraints")),
    ("images_have_a_version", "default", lambda r: _container(r).update(image="kvarn")),
    ("images_have_a_version", "default", lambda r: _container(r).update(image="host:5000/kvarn:latest")),
    (
        "secrets_are_files",
        "default",
        lambda r: _container(r)["env"].append({"name": "KVARN_API_KEY", "value": "kv-1"}),
    ),
    (
        "secrets_are_files",
        "default",
        lambda r: _first("ConfigMap", r)["data"].update(other="store: {url: 'postgresql://me:secret@host/db'}"),
    ),
    ("secrets_are_files", "available", lambda r: _pod(r)["volumes"][-1]["secret"].update(defaultMode=0o444)),
    (
        "kvarn_takes_the_configuration",
        "default",
        lambda r: _container(r)["env"].append({"name": "KVARN_GATEWAY__PROT", "value": "80"}),
    ),
    (
        "kvarn_takes_the_configuration",
        "available",
        lambda r: _container(r)["volumeMounts"][-1].update(mountPath="/run/other"),
    ),
    (
        "kvarn_takes_the_configuration",
        "groups",
        lambda r: _first("ConfigMap", r)["data"].update({"kvarn.yaml": "models: [{name: a, pth: b}]"}),
    ),
    ("variables_of_services_are_not_taken_for_settings", "default", lambda r: _pod(r).pop("enableServiceLinks")),
    (
        "servers_of_one_address_share_a_database",
        "default",
        lambda r: _first("StatefulSet", r)["spec"].update(replicas=2),
    ),
    (
        "kubernetes_may_be_asked_only_for_pods_by_those_that_make_some",
        "launcher",
        lambda r: _first("Role", r)["rules"][0]["resources"].append("secrets"),
    ),
    (
        "kubernetes_may_be_asked_only_for_pods_by_those_that_make_some",
        "default",
        lambda r: _pod(r).update(automountServiceAccountToken=True),
    ),
    ("kubernetes_may_be_asked_only_for_pods_by_those_that_make_some", "launcher", lambda r: _without("Role", r)),
    ("every_pod_has_a_network_policy_that_lets_prometheus_in", "default", lambda r: _without("NetworkPolicy", r)),
    (
        "every_pod_has_a_network_policy_that_lets_prometheus_in",
        "tls",
        lambda r: _first("NetworkPolicy", r)["spec"]["ingress"][0]["from"].pop(),
    ),
    (
        "every_pod_has_a_network_policy_that_lets_prometheus_in",
        "groups",
        lambda r: r.of("NetworkPolicy")[1]["spec"]["ingress"][0].pop("from"),
    ),
    (
        "a_new_configuration_restarts_pods",
        "default",
        lambda r: _first("StatefulSet", r)["spec"]["template"]["metadata"].pop("annotations"),
    ),
    (
        "what_scales_has_something_to_scale_and_a_metric",
        "hpa",
        lambda r: _first("HorizontalPodAutoscaler", r)["spec"]["scaleTargetRef"].update(name="other"),
    ),
    (
        "what_scales_has_something_to_scale_and_a_metric",
        "autoscaled",
        lambda r: _first("ScaledObject", r)["spec"]["triggers"][0]["metadata"].update(query="sum(kvarn_replicas)"),
    ),
    (
        "what_scales_has_something_to_scale_and_a_metric",
        "autoscaled",
        lambda r: _first("StatefulSet", r)["spec"].update(replicas=2),
    ),
    (
        "a_rolling_update_never_has_fewer_gateways",
        "groups",
        lambda r: _first("Deployment", r)["spec"].pop("strategy"),
    ),
    (
        "objects_have_the_usual_labels_and_short_names",
        "default",
        lambda r: _first("Service", r)["metadata"]["labels"].pop("helm.sh/chart"),
    ),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_rule_is_kept_by_each_value_set(policy: str) -> None:
    assert [(values, problem) for values in VALUE_SETS for problem in POLICIES[policy](render_set(values))] == []


@pytest.mark.parametrize(("policy", "values", "damage"), BREAKAGES)
def test_the_rule_finds_what_breaks_it(policy: str, values: str, damage: Breakage) -> None:
    rendered = render_set(values)
    damage(rendered)
    assert list(POLICIES[policy](rendered))


def test_each_rule_is_shown_to_break() -> None:
    assert {policy for policy, _, _ in BREAKAGES} == POLICIES.keys() and len(POLICIES) >= 20
