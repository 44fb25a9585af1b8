"""All checks, in the order in which an operator would make them."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import shutil
from pathlib import Path

from kvarn.config.schema import KvarnConfig
from kvarn.doctor import devices, machine, settings
from kvarn.doctor.finding import Finding
from kvarn.doctor.server import check_server
from kvarn.doctor.services import check_services
from kvarn.fleet.placement.gpus import find_gpus, ranks_on_gpus
from kvarn.gateway.server import open_files_needed
from kvarn.kernels.device.memory import usable_memory
from kvarn.replica.server.cpu import cpu_quota, usable_cores
from kvarn.sandbox.bubblewrap import find_bubblewrap
from kvarn.sandbox.errors import NoSandboxError

Findings = dict[str, list[Finding]]
"""Findings by area."""


def examine(path: Path | None) -> Findings:
    """Examine this machine for the configuration in a file, or the default one. Nothing is changed. Where the
    configuration cannot be used, only the machine is examined."""
    config, found = settings.read_settings(path)
    findings = {"configuration": found, "machine": _machine(config), "devices": _devices(config)}
    if config is None:
        return findings
    found.append(settings.check_access(config))
    found += filter(None, [settings.check_certificate(config), settings.check_secrets(path) if path else None])
    found += settings.check_models(config)
    found += settings.check_files(config) + settings.check_contradictions(config, usable_cores())
    findings["services"] = asyncio.run(_services(config))
    findings["server"] = check_server(config.gateway)
    return findings


def _machine(config: KvarnConfig | None) -> list[Finding]:
    name = machine.processor_name(_read("/proc/cpuinfo"))
    usable = usable_memory()
    found = [
        machine.check_processors(name, platform.machine(), usable_cores(), os.cpu_count() or 1, cpu_quota()),
        machine.check_memory(usable, machine.available_memory(_read("/proc/meminfo"), usable)),
    ]
    found.append(
        machine.check_sandbox(_missing_sandbox(), parses_without=config is not None and config.sandbox.parse_without)
    )
    if config is None:
        return found
    gpus = find_gpus()
    in_memory = [model for model in config.models if not ranks_on_gpus(model, gpus)]
    caches = machine.check_kv_caches(sum((each.kv_cache_gib or 0) * each.replicas for each in in_memory), usable)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    data = Path(config.data_dir).expanduser().absolute()
    existing = next(each for each in (data, *data.parents) if each.exists())
    kind = machine.file_system_of(existing, _read("/proc/self/mounts"))
    return [
        *found,
        *filter(None, [caches]),
        machine.check_open_files(
            None if hard == resource.RLIM_INFINITY else hard, open_files_needed(config.gateway.max_connections)
        ),
        machine.check_directory(data, shutil.disk_usage(existing).free, kind),
    ]


def _missing_sandbox() -> str | None:
    try:
        find_bubblewrap()
    except NoSandboxError as error:
        return str(error)
    return None


def _devices(config: KvarnConfig | None) -> list[Finding]:
    build = devices.read_torch()
    wanted_by = [model.name for model in config.models if model.device == "cuda"] if config else []
    found = [devices.check_torch(build)]
    if build is not None:
        found.append(devices.check_kernels())
    return [*found, devices.check_gpus(find_gpus(), build, wanted_by)]


async def _services(config: KvarnConfig) -> list[Finding]:
    return [each async for each in check_services(config)]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
