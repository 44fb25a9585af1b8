"""A draft model beside the model: loaded as configured, refused where its tokens are others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import kvarn
from kvarn.config.schema import ModelConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.replica.server.build import build_service
from kvarn.replica.server.startup.draft import DraftModelError, check_vocabulary
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import StepOutput, Submit
from kvarn.wire.sampling import SamplingParams

ASSETS = Path(kvarn.__file__).parent / "assets"


def test_a_replica_with_a_draft_model_answers_the_same(tmp_path: Path) -> None:
    answers = []
    for speculation in ({"method": "none"}, {"model": "kvarn-demo-draft", "adaptive": False}):
        config = ModelConfig(name="m", path="kvarn-demo", speculation=speculation, kv_cache_gib=0.05)
        spec = ReplicaSpec(
            model=config.model_dump_json(),
            directory=str(ASSETS / "kvarn-demo"),
            draft_directory=str(ASSETS / "kvarn-demo-draft") if "model" in speculation else "",
        )
        service = build_service(spec, lambda *_: None)
        prompt = [100 + i % 30 for i in range(40)]
        sampling = SamplingParams(seed=0, temperature=0.0, max_tokens=40)
        assert service.accept(Submit(request_id="r", prompt_token_ids=prompt, sampling=sampling)) is None
        tokens: list[int] = []
        while service.has_work():
            for output in service.step():
                assert isinstance(output, StepOutput)
                tokens += [token for delta in output.deltas for token in delta.token_ids]
        answers.append(tokens)
        proposed = service.stats().speculation.draft_tokens_total
        assert (proposed > 0) == ("model" in speculation)
    assert answers[0] == answers[1]


def test_another_tokenizer_is_refused_with_what_to_do(tmp_path: Path) -> None:
    check_vocabulary(ASSETS / "kvarn-demo-draft", ASSETS / "kvarn-demo")
    other = tmp_path / "other"
    shutil.copytree(ASSETS / "kvarn-demo-draft", other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(DraftModelError, match=r"2 of 4096 tokens differ.*same family"):
        check_vocabulary(other, ASSETS / "kvarn-demo")
    (other / "tokenizer.json").unlink()
    with pytest.raises(DraftModelError, match=r"need a tokenizer\.json"):
        check_vocabulary(other, ASSETS / "kvarn-demo")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "draft_model"}, "needs `model`"),
        ({"method": "ngram", "model": "x"}, "uses no `model`"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, "must not be less"),
        ({"method": "eagle3"}, "needs `model`: the head"),
        ({"method": "medusa"}, "eagle3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SpeculationConfig.model_validate(settings)
