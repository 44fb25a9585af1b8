"""Tiers of KV blocks as an engine process has them: the packaged model, its real kernels, and files."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import kvarn
from kvarn.config.engine import EngineConfig
from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.config.model import ModelConfig
from kvarn.kvstore import KVStoreError
from kvarn.replica.server.build import build_service
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.server.kv_tiers import weights_digest
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import EngineStats, StepOutput, Submit
from kvarn.wire.sampling import SamplingParams
from profiles import thorough

DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
SMALL_CACHE_GIB = 0.0011


def prompt(number: int) -> list[int]:
    """A common beginning and an own end."""
    return [(j * j) % 997 + 5 for j in range(100)] + [(number * 37 + j * j) % 991 + 5 for j in range(101)]


class Engine:
    """The demo model's service, with a cache that holds little of what the tests ask for."""

    def __init__(self, tiers: KVTiersConfig | None, **config: object) -> None:
        settings = {"name": "demo", "path": "kvarn-demo", "threads": 1, "kv_cache_gib": SMALL_CACHE_GIB, **config}
        model = ModelConfig(kv_tiers=tiers, max_context_length=256, engine=EngineConfig(max_num_seqs=4), **settings)
        spec = ReplicaSpec(model=model.model_dump_json(), directory=str(DEMO))
        service = build_service(spec, lambda stage, fraction: None)
        assert isinstance(service, GenerateService)
        self.service = service

    def answers(self, temperature: float = 1.0) -> dict[str, list[int]]:
        """What it makes of eight prompts, four of which run at once."""
        for number in range(8):
            sampling = SamplingParams(seed=number, max_tokens=20, temperature=temperature)
            request = Submit(request_id=f"r{number}", prompt_token_ids=prompt(number), sampling=sampling, tenant="acme")
            assert self.service.accept(request) is None
        answers: dict[str, list[int]] = {}
        while self.service.has_work():
            if not (outputs := self.service.step()):
                time.sleep(0.001)  # as the engine's loop does
            for output in outputs:
                assert isinstance(output, StepOutput)
                for delta in output.deltas:
                    answers.setdefault(delta.request_id, []).extend(delta.token_ids)
        return answers

    def stats(self) -> EngineStats:
        return self.service.stats()


@pytest.fixture(scope="module")
def plain() -> dict[str, list[int]]:
    engine = Engine(None, kv_cache_gib=0.1)
    answers = engine.answers()
    assert engine.stats().evictions_total == 0
    return answers


@pytest.mark.parametrize("is_encrypted", [thorough(False), True])
def test_answers_are_the_same_from_memory_from_disk_and_after_a_restart(
    tmp_path: Path, plain: dict[str, list[int]], is_encrypted: bool
) -> None:
    (tmp_path / "master").write_text("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n")
    tiers = KVTiersConfig(
        host_gib=0.0015,
        disk_gib=0.1,
        directory=str(tmp_path / "kv"),
        encryption_key_file=str(tmp_path / "master") if is_encrypted else None,
    )
    first = Engine(tiers)
    assert first.answers() == plain
    assert first.answers() == plain
    assert first.stats().evictions_total > 0
    first.service.shutdown()
    again = Engine(tiers)
    assert again.stats().kv_tiers["disk"].blocks > 0
    assert again.answers() == plain
    again.service.shutdown()


def test_blocks_of_other_weights_or_another_form_are_not_found(tmp_path: Path, plain: dict[str, list[int]]) -> None:
    tiers = KVTiersConfig(host_gib=0.01, disk_gib=0.1, directory=str(tmp_path))
    for config in ({}, {"kv_cache_dtype": "float32"}, {"quantization": "int8"}):
        engine = Engine(tiers, **config)
        assert engine.stats().kv_tiers["disk"].blocks == 0
        answers = engine.answers()
        assert config or answers == plain
        engine.service.shutdown()
        assert engine.stats().kv_tiers["disk"].blocks > 0


def test_every_byte_of_the_weights_counts_and_is_read_once(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(DEMO, checkpoint)
    directory = tmp_path / "kv"
    known = weights_digest(checkpoint, directory)
    assert known == weights_digest(DEMO, directory)
    (kept, _) = sorted((directory / "weights").iterdir())
    assert kept.read_text() == known
    weights = checkpoint / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[len(raw) // 2 + 1] ^= 1
    weights.write_bytes(raw)
    assert weights_digest(checkpoint, directory) != known


def test_memory_too_small_for_a_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KVStoreError, match="host_gib has no room"):
        Engine(KVTiersConfig(host_gib=1e-9))
