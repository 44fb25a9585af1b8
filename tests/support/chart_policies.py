"""Rules that every value set of the chart keeps. Each takes the rendered objects and yields what breaks it."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

from chart import Object, Rendered, name_of
from kvarn.config.load import ConfigError, load_config
from kvarn.gateway.middleware import PROBES
from kvarn.gateway.routes.operation import router

Policy = Callable[[Rendered], Iterator[str]]

POLICIES: dict[str, Policy] = {}

SECRET_ENTRIES = {
    "database-url": "postgresql://kvarn:secret@postgres/kvarn",
    "redis-url": "redis://redis:6379/0",
    "key": "k" * 48,
}
"""What Secrets hold that the chart does not make."""
_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|_URL$")
_WITH_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
_PROBE_KINDS = ("startupProbe", "readinessProbe", "livenessProbe")
_MIN_STARTUP_S = 600
_MIN_LEAVE_S = 5
_STOP_S = 15  # a server needs them after its requests are over


def policy(check: Policy) -> Policy:
    POLICIES[check.__name__] = check
    return check


@policy
def pods_run_as_an_ordinary_user(rendered: Rendered) -> Iterator[str]:
    for workload, pod, container in rendered.containers():
        context = pod.get("securityContext", {}) | container.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or not context.get("runAsUser", 0) > 0:
            yield f"{name_of(workload)} may run as root"


@policy
def containers_have_no_privileges(rendered: Rendered) -> Iterator[str]:
    for workload, pod, container in rendered.containers():
        context = container.get("securityContext", {})
        if context.get("privileged") or context.get("allowPrivilegeEscalation") is not False:
            yield f"{name_of(workload)} may gain privileges"
        if context.get("capabilities", {}) != {"drop": ["ALL"]}:
            yield f"{name_of(workload)} keeps capabilities"
        if pod["securityContext"].get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name_of(workload)} has no seccomp profile"
        if any(pod.get(each) for each in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{name_of(workload)} shares its node's namespaces"


@policy
def what_is_written_lies_in_volumes(rendered: Rendered) -> Iterator[str]:
    for workload, _, container in rendered.containers():
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            yield f"{name_of(workload)} may write to its image"
        writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
        home = {each["name"]: each.get("value") for each in container["env"]}.get("HOME")
        wanted = {rendered.settings(workload)["data_dir"], home, "/tmp", "/dev/shm"}
        for missing in sorted(map(str, wanted - writable)):
            yield f"{name_of(workload)} cannot write to {missing}"


@policy
def volumes_and_mounts_agree(rendered: Rendered) -> Iterator[str]:
    for workload, pod, container in rendered.containers():
        claims = [each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])]
        volumes = [each["name"] for each in pod["volumes"]] + claims
        mounts = [each["name"] for each in container["volumeMounts"]]
        if sorted(volumes) != sorted(mounts):
            yield f"{name_of(workload)} has the volumes {sorted(volumes)} and mounts {sorted(mounts)}"
        if any("hostPath" in each for each in pod["volumes"]):
            yield f"{name_of(workload)} mounts a directory of its node"


@policy
def resources_are_requested_and_memory_is_limited(rendered: Rendered) -> Iterator[str]:
    for workload, _, container in rendered.containers():
        requests, limits = (container["resources"].get(each, {}) for each in ("requests", "limits"))
        for missing in {"cpu", "memory"} - requests.keys():
            yield f"{name_of(workload)} requests no {missing}"
        if "memory" not in limits:
            yield f"{name_of(workload)} has no limit of memory"


@policy
def probes_ask_paths_of_the_gateway_that_need_no_key(rendered: Rendered) -> Iterator[str]:
    paths = {getattr(route, "path", "") for route in router.routes} & PROBES
    for workload, _, container in rendered.containers():
        for kind in _PROBE_KINDS:
            path = container.get(kind, {}).get("httpGet", {}).get("path", "nothing")
            if path.partition("?")[0] not in paths:
                yield f"{name_of(workload)}: {kind} asks {path}"


@policy
def probes_mean_what_they_say(rendered: Rendered) -> Iterator[str]:
    """Only readiness asks for models: one that loads or is lost is its server's matter, which must not be restarted."""
    for workload, _, container in rendered.containers():
        start, ready, live = (container.get(kind, {}) for kind in _PROBE_KINDS)
        asked = [each.get("httpGet", {}).get("path", "").partition("?")[0] for each in (start, ready, live)]
        if asked != ["/health", "/ready", "/health"]:
            yield f"{name_of(workload)} is started, ready and alive by {asked}"
        if start.get("periodSeconds", 10) * start.get("failureThreshold", 3) < _MIN_STARTUP_S:
            yield f"{name_of(workload)} is given up before a model is downloaded"
        if live.get("periodSeconds", 10) * live.get("failureThreshold", 3) < 30:
            yield f"{name_of(workload)} is restarted after a short silence"


@policy
def ports_agree(rendered: Rendered) -> Iterator[str]:
    for workload, _, container in rendered.containers():
        settings = rendered.settings(workload)["gateway"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        if ports.get("http") != settings["port"]:
            yield f"{name_of(workload)} listens on {settings['port']} and names {ports}"
        scheme = "HTTPS" if "ssl_certfile" in settings else "HTTP"
        for kind in _PROBE_KINDS:
            probe = container.get(kind, {}).get("httpGet", {})
            if probe.get("port") not in ports or probe.get("scheme", "HTTP") != scheme:
                yield f"{name_of(workload)}: {kind} asks {probe.get('port')} by {probe.get('scheme')}"
        for service in rendered.of("Service"):
            if workload in rendered.selected(service["spec"]["selector"]):
                for port in service["spec"]["ports"]:
                    if port["targetPort"] not in ports:
                        yield f"{name_of(service)} leads to the port {port['targetPort']}"


@policy
def a_server_that_is_stopped_answers_until_nobody_asks(rendered: Rendered) -> Iterator[str]:
    """Services hear late that a pod ends."""
    for workload in rendered.workloads():
        seconds = rendered.settings(workload)["gateway"].get("shutdown_delay_s", 0)
        if seconds < _MIN_LEAVE_S:
            yield f"{name_of(workload)} stops after {seconds} s, while requests still come"


@policy
def running_requests_may_finish(rendered: Rendered) -> Iterator[str]:
    for workload, pod, _ in rendered.containers():
        settings = rendered.settings(workload)["gateway"]
        needed = math.ceil(settings.get("shutdown_delay_s", 0) + settings["drain_timeout_s"]) + _STOP_S
        if pod.get("terminationGracePeriodSeconds", 30) < needed:
            yield f"{name_of(workload)} is killed before it has drained, which takes {needed} s"


@policy
def images_have_a_version(rendered: Rendered) -> Iterator[str]:
    for workload, _, container in rendered.containers():
        tag = container["image"].rpartition("/")[2].partition(":")[2]
        if not tag or tag == "latest":
            yield f"{name_of(workload)} runs {container['image']}, whatever that is tomorrow"


@policy
def secrets_are_files(rendered: Rendered) -> Iterator[str]:
    for workload, _, container in rendered.containers():
        for each in container["env"]:
            value = str(each.get("value", ""))
            if _WITH_PASSWORD.search(value) or (
                _SECRET_NAME.search(each["name"]) and not each["name"].endswith("_FILE")
            ):
                yield f"{name_of(workload)} has {each['name']} in its environment"
    for each in rendered.of("ConfigMap"):
        for text in each["data"].values():
            if _WITH_PASSWORD.search(text) or re.search(r"^\s*(password|api_keys|client_secret):", text, re.MULTILINE):
                yield f"{name_of(each)} holds a secret"
    for workload, pod, _ in rendered.containers():
        for volume in pod["volumes"]:
            if volume.get("secret", {}).get("defaultMode", 0) & 0o007:
                yield f"{name_of(workload)}: everybody may read {volume['name']}"


@policy
def kvarn_takes_the_configuration(rendered: Rendered) -> Iterator[str]:
    """File and environment, with secrets that are there: each name is a setting, each value one that it may have."""
    for workload, pod, container in rendered.containers():
        with tempfile.TemporaryDirectory() as directory:
            environment = dict(_environment(container, Path(directory)))
            file = Path(directory) / "kvarn.yaml"
            file.write_text(next(_texts(rendered, pod)))
            warnings: list[str] = []
            with patch.dict(os.environ, environment):
                try:
                    load_config(file, warn=warnings.append)
                except ConfigError as error:
                    warnings.append(str(error))
            yield from (f"{name_of(workload)}: {each}" for each in warnings)


def _environment(container: Object, root: Path) -> Iterator[tuple[str, str]]:
    """Kvarn's variables. The files of mounted secrets that they name are made below a directory."""
    mounts = [each["mountPath"] for each in container["volumeMounts"] if each.get("readOnly")]
    for each in container["env"]:
        name, value = each["name"], each["value"]
        if name.endswith("_FILE"):
            file = root / value.lstrip("/")
            if str(Path(value).parent) in mounts:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(SECRET_ENTRIES[file.name])
                file.chmod(0o440)
            value = str(file)
        if name.startswith("KVARN_"):
            yield name, value


@policy
def variables_of_services_are_not_taken_for_settings(rendered: Rendered) -> Iterator[str]:
    for workload, pod, _ in rendered.containers():
        if pod.get("enableServiceLinks") is not False:
            yield f"{name_of(workload)} gets a variable KVARN_... for each service"


@policy
def a_new_configuration_restarts_pods(rendered: Rendered) -> Iterator[str]:
    for workload in rendered.workloads():
        if "checksum/config" not in workload["spec"]["template"]["metadata"].get("annotations", {}):
            yield f"{name_of(workload)} goes on with its old configuration"


def _texts(rendered: Rendered, pod: Object) -> Iterator[str]:
    names = [each["configMap"]["name"] for each in pod["volumes"] if each["name"] == "config"]
    yield from (each["data"]["kvarn.yaml"] for each in rendered.of("ConfigMap") if each["metadata"]["name"] in names)
