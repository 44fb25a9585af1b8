"""Which backend serves a device, and that only the kernels know devices by name."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import kvarn
from kvarn.kernels import dispatch
from kvarn.kernels.backend import Kernels, torch_kernels
from kvarn.kernels.dispatch import BACKENDS, Backend, kernels_for
from kvarn.kernels.errors import MissingDeviceError, MissingKernelsError, UnknownBackendError, UnsupportedByBackendError

DEVICE_NAMES = {"cpu", "cuda", "mps", "xpu", "hpu", "meta"}


def other_kernels(device: torch.device) -> Kernels:
    return replace(torch_kernels(device), name="other")


def test_a_device_that_no_backend_is_made_for_is_served_by_torch() -> None:
    kernels = kernels_for(device="meta")
    assert (kernels.name, kernels.device.torch_device) == ("torch", torch.device("meta"))


def test_a_registered_backend_serves_its_device_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "BACKENDS", {"other": Backend(other_kernels, ("meta",)), **BACKENDS})
    kernels = kernels_for(device="meta")
    assert (kernels.name, kernels.device.torch_device) == ("other", torch.device("meta"))
    assert kernels_for().name != "other"
    assert kernels_for("torch", "meta").name == "torch"
    with pytest.raises(UnsupportedByBackendError, match="'other' kernels do not compute on cpu: set `kernels` to auto"):
        kernels_for("other")


def test_a_backend_that_is_not_installed_is_replaced_with_a_warning_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(device: torch.device) -> Kernels:
        raise MissingKernelsError(ImportError("not there"))

    monkeypatch.setattr(dispatch, "BACKENDS", {"absent": Backend(missing, ("meta",)), **BACKENDS})
    with caplog.at_level(logging.WARNING):
        assert kernels_for(device="meta").name == "torch"
    assert caplog.text.count("serving with the torch kernels, which are slower") == 1
    with pytest.raises(MissingKernelsError):
        kernels_for("absent", "meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_auto_takes_the_processors_and_a_gpu_is_refused_in_one_line() -> None:
    assert kernels_for(device="auto").device.torch_device == torch.device("cpu")
    with pytest.raises(MissingDeviceError, match=r"^no GPU that torch \S+ can use: .*Set `device` to auto or cpu.*$"):
        kernels_for(device="cuda")


def test_an_unknown_backend_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnknownBackendError, match="torch"):
        kernels_for("abacus")


def modules_with_torch() -> Iterator[tuple[Path, ast.Module]]:
    """Modules that import torch, but for the kernels, the command line, whose options name backends, and
    `kvarn doctor`, which examines devices."""
    root = Path(kvarn.__file__).parent
    for file in root.rglob("*.py"):
        if file.relative_to(root).parts[0] in ("kernels", "cli", "doctor"):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        if any(alias.name.split(".")[0] == "torch" for node in imports for alias in node.names):
            yield file, tree


def test_nothing_above_the_kernels_names_a_device() -> None:
    modules = list(modules_with_torch())
    assert {"decoder.py", "executor.py", "sampler.py"} <= {file.name for file, _ in modules}
    named = [
        f"{file}:{node.lineno}"
        for file, tree in modules
        for node in ast.walk(tree)
        if (isinstance(node, ast.Constant) and str(node.value).partition(":")[0] in DEVICE_NAMES)
        or (isinstance(node, ast.Attribute) and node.attr in DEVICE_NAMES)
    ]
    assert named == []
