"""The service of a cross-encoder, from its checkpoint to its answers."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from kvarn.config.model import ModelConfig
from kvarn.replica.server.build import KindMismatchError, build_service
from kvarn.replica.server.embed import EmbedService
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import Embed, Embedded
from tiny_checkpoints import make_encoder

PAIRS = [[0, 7, 8, 2, 2, 9, 2], [0, 7, 8, 2, 2, 50, 51, 2], [0, 40, 2, 2, 9, 2]]


def spec(path: Path, **config: object) -> ReplicaSpec:
    model = ModelConfig.model_validate({"name": "rank", "path": str(path), "threads": 1, "dtype": "float32", **config})
    return ReplicaSpec(model=model.model_dump_json(), directory=str(path))


def test_each_pair_gets_the_logit_of_its_label(tmp_path: Path) -> None:
    oracle = make_encoder("XLMRoberta", tmp_path, head="ForSequenceClassification", num_labels=1)
    service = build_service(spec(tmp_path), lambda stage, fraction: None)
    assert isinstance(service, EmbedService)
    assert (service.card.kind, service.card.embedding_size) == ("score", 0)
    assert service.accept(Embed(request_id="a", inputs=PAIRS)) is None
    answers: list[Embedded] = []
    while service.has_work():
        answers += [output for output in service.step() if isinstance(output, Embedded)]
    found = [struct.unpack("<f", vector)[0] for vector in answers[0].vectors]
    with torch.no_grad():
        want = [float(oracle(torch.tensor([pair])).logits) for pair in PAIRS]
    assert found == pytest.approx(want, abs=1e-5)


def test_a_cross_encoder_is_refused_as_an_embedding_model(tmp_path: Path) -> None:
    make_encoder("XLMRoberta", tmp_path, head="ForSequenceClassification", num_labels=1)
    with pytest.raises(KindMismatchError, match="'score'"):
        build_service(spec(tmp_path, kind="embed"), lambda stage, fraction: None)
