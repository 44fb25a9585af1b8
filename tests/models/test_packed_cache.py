"""Packed weights kept from one start to the next: nothing is packed again, and damage is said and mended."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn import kernels, models, shapes
from kvarn.kernels.linear import Linear
from kvarn.kernels.packer import WeightPacker
from kvarn.kernels.torch.quantize import quantize
from kvarn.kernels.weights import Weight
from kvarn.models import Decoder, load_model
from kvarn.models.loading.packed_cache import PackedCache
from packed_files import finish_writes, writers

cpu_backend = pytest.importorskip(
    "kvarn.kernels.cpu.backend", reason="needs the compiled kernels", exc_type=ImportError
)

PROMPT = list(range(5, 40))


@pytest.fixture
def checkpoint(oracle_factory: Callable[..., tuple[Any, Path]], tmp_path: Path) -> Path:
    """A llama with biases and an untied head, which a test may change."""
    _, path = oracle_factory("llama")
    return Path(shutil.copytree(path, tmp_path / "model"))


@pytest.fixture
def load(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Decoder, int]]:
    """Load with the cache: the model, and how many layers were packed for it."""

    packed: list[str] = []
    keep = PackedCache.keep

    def note(self: PackedCache, name: str, linear: Linear) -> None:
        packed.append(name)
        keep(self, name, linear)

    monkeypatch.setattr(PackedCache, "keep", note)

    def run(**options: Any) -> tuple[Decoder, int]:
        packed.clear()
        model = load_model(checkpoint, **{"kernels": "cpu", "packed_cache": tmp_path / "cache", **options})
        finish_writes()
        assert isinstance(model, Decoder)
        return model, len(packed)

    return run


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").iterdir())


def test_the_second_start_packs_nothing_and_computes_the_same(load: Any, tmp_path: Path, run_paged: Any) -> None:
    first, packed = load()
    second, packed_again = load()
    assert (packed, packed_again) == (3 * 4 + 1, 0)
    assert [file.suffix for file in kept(tmp_path)] == [".safetensors"]
    logits = [run_paged(model).step({"a": PROMPT})["a"] for model in (first, second)]
    assert torch.equal(*logits)


def test_other_weights_or_another_form_of_them_are_packed_anew(load: Any, checkpoint: Path, tmp_path: Path) -> None:
    load()
    assert load(quantization="int8")[1] == 13
    assert load(dtype="float32")[1] == 13
    assert len(kept(tmp_path)) == 3
    os.utime(checkpoint / "model.safetensors", ns=(1, 1))
    assert load()[1] == 13


def test_another_layout_of_packed_bytes_is_another_file(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    monkeypatch.setattr("kvarn.kernels.cpu.packer.CpuPacker.layout", "test/2")
    assert load()[1] == 13


def test_weights_are_packed_anew_when_the_code_that_prepares_them_has_changed(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    copy = tmp_path / "models"
    shutil.copytree(Path(models.__file__).parent, copy)
    others = (Path(each.__file__).parent for each in (kernels, shapes))
    monkeypatch.setattr("kvarn.models.loading.packed_cache._CODE", (copy, *others))
    assert load()[1] == 0
    with (copy / "formats" / "gptq.py").open("a") as stream:
        stream.write("# zero points are read right now")
    assert load()[1] == 13


def test_a_changed_layout_of_packed_bytes_needs_a_new_name() -> None:
    """A failure means: count up LAYOUT and put the digest here, else bytes of earlier starts are misread."""
    from kvarn.kernels.cpu.packing import LAYOUT, pack

    digest = hashlib.sha256()
    numbers = (torch.arange(40 * 96, dtype=torch.float32).view(40, 96) * 37 % 101 - 50) / 64
    zeros = (torch.arange(40 * 3, dtype=torch.int64).view(40, 3) % 16).to(torch.uint8)
    four_bits = Weight((numbers * 64 % 16).to(torch.uint8), torch.ones(40, 3).half(), zeros, 32)
    plain = [Weight(numbers), Weight(numbers.bfloat16())]
    multiplied = quantize(numbers, "int4")
    weights = [*plain, quantize(numbers, "int8"), four_bits, replace(four_bits, zeros=None), multiplied]
    for activation in (None, "silu"):
        for weight in weights:
            digest.update(pack(weight, None, activation).blob.numpy().tobytes())
    assert (LAYOUT, digest.hexdigest()[:16]) == ("panels-of-16/2", "0e5690e6c97d07bb")


@pytest.mark.parametrize("damage", ["cut", "garbage", "other form"])
def test_a_damaged_file_is_logged_and_replaced(
    damage: str, load: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, run_paged: Any
) -> None:
    model, _ = load()
    want = run_paged(model).step({"a": PROMPT})["a"]
    (file,) = kept(tmp_path)
    content = file.read_bytes()
    file.unlink()
    match damage:
        case "cut":
            file.write_bytes(content[: len(content) // 2])
        case "garbage":
            file.write_bytes(b"\x10\0\0\0\0\0\0\0 not safetensors")
        case _:
            file.write_bytes(content.replace(rb"\"out\": 32", rb"\"out\": 99"))
    mended, packed = load()
    assert packed > 0
    assert caplog.text.count("damaged") == 1
    assert torch.equal(run_paged(mended).step({"a": PROMPT})["a"], want)
    assert load()[1] == 0


def test_a_directory_that_cannot_be_written_costs_only_a_warning(
    load: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file, not a directory")
    assert load()[1] == 13
    assert "could not be kept" in caplog.text


def test_a_slow_disk_delays_no_start(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_paged: Any
) -> None:
    written = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: written.wait(60))
    model = load_model(checkpoint, kernels="cpu", packed_cache=tmp_path / "cache")
    run_paged(model).step({"a": PROMPT})
    (writer,) = writers()
    assert writer.daemon  # a process can end meanwhile
    assert not list((tmp_path / "cache").glob("*.safetensors"))
    written.set()
    finish_writes()
    assert [file.suffix for file in kept(tmp_path)] == [".safetensors"]


def test_torch_kernels_log_that_they_keep_nothing(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_model(checkpoint, kernels="torch", packed_cache=tmp_path / "cache")
    assert "only the compiled kernels" in caplog.text
    assert not (tmp_path / "cache").exists()


def test_reordered_inputs_are_kept_with_their_order(tmp_path: Path) -> None:
    packer = cpu_backend.cpu_kernels().packer
    weight = torch.randn(20, 64, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    layer = packer.pack_linear(Weight(weight[:, order], input_order=order), torch.ones(20))
    cache = PackedCache.open(tmp_path, "m", ["x"], packer)
    cache.keep("layer", layer)
    save(cache)
    again = PackedCache.open(tmp_path, "m", ["x"], packer).find("layer")
    assert again is not None
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(again(x), x @ weight.T + 1)
    assert torch.equal(again.rows(torch.tensor([7, 2])), weight[[7, 2]])
    assert PackedCache.open(tmp_path, "m", ["x"], packer).find("other") is None


def save(cache: PackedCache) -> None:
    cache.save()
    finish_writes()


def small_cache(directory: Path) -> tuple[WeightPacker, PackedCache]:
    """Something to save."""
    packer = cpu_backend.cpu_kernels().packer
    cache = PackedCache.open(directory, "m", ["x"], packer)
    cache.keep("layer", packer.pack_linear(Weight(torch.ones(16, 32))))
    return packer, cache


def test_a_directory_that_may_not_be_looked_into_costs_only_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(small_cache(tmp_path)[1])
    tmp_path.chmod(0o000)
    user = os.geteuid()
    try:
        if user == 0:  # whom permissions do not bind
            os.seteuid(65534)
        assert PackedCache.open(tmp_path, "m", ["x"], cpu_backend.cpu_kernels().packer).find("layer") is None
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o755)
    assert "cannot be read" in caplog.text
    assert "damaged" not in caplog.text


def test_others_may_read_the_file_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save(small_cache(tmp_path)[1])
    finally:
        os.umask(before)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_full_disk_costs_only_a_warning_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cache = small_cache(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    save(cache)
    assert "could not be kept" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_parts_of_writers_that_were_killed_are_removed_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    packer, cache = small_cache(tmp_path)
    old, new, other = (tmp_path / f".{name}-ab" for name in (cache.file.name, f"{cache.file.name}-", "other"))
    for part in (old, new, other):
        part.write_bytes(b"part")
    for part in (old, other):
        os.utime(part, (1, 1))
    save(cache)
    assert sorted(tmp_path.iterdir()) == sorted([cache.file, new, other])
    assert PackedCache.open(tmp_path, "m", ["x"], packer).find("layer") is not None


def test_two_processes_that_write_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    for cache in [small_cache(tmp_path)[1] for _ in range(8)]:
        cache.save()
    finish_writes()
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".safetensors"
    assert PackedCache.open(tmp_path, "m", ["x"], cpu_backend.cpu_kernels().packer).find("layer") is not None
