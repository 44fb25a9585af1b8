"""Packed weights that are kept by default: where, how much of the disk they take, and that nothing depends on them."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvarn.models import Decoder, load_model
from kvarn.models.loading.packed_directory import default_directory, only_writer
from packed_files import finish_writes, writers
from rank_services import ASSETS, build

cpu_packer = pytest.importorskip("kvarn.kernels.cpu.packer", reason="needs the compiled kernels", exc_type=ImportError)

PROMPT = list(range(5, 40))
HOUR = 3600


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Path]]:
    """The files that are kept in a user's cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda: sorted((tmp_path / "cache/kvarn/packed").glob("*.safetensors"))


@pytest.fixture
def load(
    kept: object, oracle_factory: Callable[..., tuple[Any, Path]], run_paged: Any, caplog: pytest.LogCaptureFixture
) -> Callable[..., torch.Tensor]:
    """Load a model in int4 with the default; logits that it gives. No warning is logged."""
    _, path = oracle_factory("llama")

    def run(**options: Any) -> torch.Tensor:
        settings = {"kernels": "cpu", "quantization": "int4", "packed_cache": "auto", **options}
        with caplog.at_level(logging.INFO):
            model = load_model(path, **settings)
            finish_writes()
        assert isinstance(model, Decoder)
        assert all(record.levelno == logging.INFO for record in caplog.records)
        logits: torch.Tensor = run_paged(model).step({"a": PROMPT})["a"]
        return logits

    return run


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """Pretend that the disk has so many bytes, and so many free ones."""

    def pretend(total: float, free: float) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=int(total), free=int(free)))

    return pretend


def forbid_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("packed again")

    monkeypatch.setattr(cpu_packer.CpuPacker, "pack_linear", refuse)


def test_weights_quantized_at_load_are_found_by_the_next_start(
    load: Any, kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load()
    (file,) = kept()
    os.utime(file, (1, 1))
    forbid_packing(monkeypatch)
    assert torch.equal(load(), first)
    assert time.time() - file.stat().st_mtime < HOUR


def test_a_read_only_cache_is_used(load: Any, kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    forbid_packing(monkeypatch)
    assert torch.equal(load(), first)


@pytest.mark.parametrize("options", [{"quantization": None}, {"kernels": "torch"}, {"packed_cache": None}], ids=str)
def test_nothing_is_kept_where_it_would_save_nothing(options: Any, load: Any, kept: Any, tmp_path: Path) -> None:
    load(**options)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("setting", "files"), [({}, 1), ({"packed_cache": "off"}, 0)], ids=["default", "off"])
def test_an_engine_keeps_weights_unless_that_is_off(setting: Any, files: int, kept: Any) -> None:
    build(ASSETS / "kvarn-demo", quantization="int4", kernels="cpu", **setting).shutdown()
    finish_writes()
    assert len(kept()) == files


def test_a_named_directory_holds_the_files_itself(kept: Any, tmp_path: Path) -> None:
    build(ASSETS / "kvarn-demo", kernels="cpu", packed_cache=str(tmp_path / "own")).shutdown()
    finish_writes()
    assert len(list((tmp_path / "own").glob("kvarn-demo-*.safetensors"))) == 1
    assert kept() == []


@pytest.mark.parametrize(("total", "free"), [(1e9, 1e8), (1e5, 1e5)], ids=["too full", "too small"])
def test_a_disk_without_room_is_left_alone(
    total: float, free: float, load: Any, kept: Any, disk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    want = load(packed_cache=None)
    disk(total, free)
    assert torch.equal(load(), want)
    assert kept() == []
    assert caplog.text.count("the disk has no room") == 1


def test_files_that_were_used_long_ago_make_room(load: Any, kept: Any, disk: Any) -> None:
    load()
    (file,) = kept()
    size = file.stat().st_size
    others = {name: file.with_name(f"{name}.safetensors") for name in ("oldest", "older", "old", "fresh")}
    for age, other in zip((5, 4, 3, 0), others.values(), strict=True):
        other.write_bytes(bytes(size))
        os.utime(other, (time.time() - age * HOUR,) * 2)
    file.unlink()
    disk(35 * size, 35 * size)
    load()
    assert kept() == sorted([file, others["old"], others["fresh"]])
    file.unlink()
    disk(100 * size, 10 * size)
    load()
    assert kept() == sorted([file, others["fresh"]])
    file.unlink()
    load()
    assert kept() == [others["fresh"]]


def test_nothing_is_removed_where_that_would_not_make_enough_room(load: Any, kept: Any, disk: Any) -> None:
    load()
    (file,) = kept()
    size = file.stat().st_size
    old = file.rename(file.with_name("old.safetensors"))
    os.utime(old, (1, 1))
    disk(100 * size, 9 * size)
    load()
    assert kept() == [old]


def test_parts_count_and_only_abandoned_ones_are_removed(load: Any, kept: Any, disk: Any) -> None:
    load()
    (file,) = kept()
    size = file.stat().st_size
    file.unlink()
    fresh, abandoned = (file.with_name(f".{name}.safetensors-ab") for name in ("fresh", "abandoned"))
    for part in (fresh, abandoned):
        part.write_bytes(bytes(size))
    os.utime(abandoned, (1, 1))
    disk(15 * size, 15 * size)
    load()
    assert kept() == []
    assert fresh.exists()
    assert not abandoned.exists()


def test_a_file_that_vanishes_while_it_is_opened_is_no_more_than_missing(
    load: Any, kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = load()

    def vanish(file: Path, framework: str) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(file))

    monkeypatch.setattr("kvarn.models.loading.packed_cache.safe_open", vanish)
    assert torch.equal(load(), want)


def test_one_of_several_starting_engines_writes(
    kept: Any, oracle_factory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    directory = tmp_path / "cache/kvarn/packed"
    directory.mkdir(parents=True)
    with only_writer(directory):
        for _ in range(3):
            load_model(oracle_factory("llama")[1], kernels="cpu", quantization="int4", packed_cache="auto")
        assert len(writers()) == 3
    finish_writes()
    assert len(synced) == len(kept()) == 1


@pytest.mark.parametrize("where", ["/proc/nothing", "home"], ids=["read-only", "no home"])
def test_without_a_place_the_model_is_served(
    where: str, load: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", where)
    monkeypatch.setattr(Path, "home", homeless)
    load()
    assert len([record for record in caplog.records if "kept" in record.message]) == 1


def test_a_relative_path_is_no_cache_of_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".cache/kvarn/packed"
