"""config.json as published models have it, whole or with a field left out, means what transformers reads in it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvarn.models import UnsupportedModelError, load_model
from kvarn.models.encoders.config import encoder_spec
from kvarn.specs.errors import CheckpointError
from kvarn.specs.families.decoder_spec import decoder_spec
from kvarn.specs.families.hf_config import DecoderConfig, EncoderConfig
from kvarn.specs.families.table import FAMILIES
from kvarn.specs.spec import DecoderSpec, EncoderSpec
from kvarn.text.json_file import validate
from oracles import assert_same_logits
from published_configs import PUBLISHED
from tiny_checkpoints import COMMON, DECODERS, save_random

CONFIG = Path("config.json")
CROSS_ENCODERS = [name for name, (config, *_) in PUBLISHED.items() if "Sequence" in config["architectures"][0]]


def as_transformers_reads(config: dict[str, Any]) -> Any:
    return transformers.CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))


def spec(config: dict[str, Any]) -> DecoderSpec | EncoderSpec:
    architecture = config["architectures"][0]
    if architecture in FAMILIES:
        defaults = FAMILIES[architecture].defaults
        return decoder_spec(architecture, validate(DecoderConfig, {**defaults, **config}, CONFIG))
    return encoder_spec(architecture, Path(), validate(EncoderConfig, config, CONFIG))


def save(path: Path, config: dict[str, Any]) -> Any:
    """A random model of a configuration, and beside it the file as it was published."""
    read = as_transformers_reads(config)
    oracle = save_random(getattr(transformers, config["architectures"][0]), read, path)
    (path / "config.json").write_text(json.dumps(config))
    return oracle


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in CROSS_ENCODERS])
def test_published_decoders_give_the_oracles_logits(name: str, tmp_path: Path, run_paged: Any) -> None:
    whole, small, context = PUBLISHED[name]
    assert spec(whole).max_context_length == context
    torch.manual_seed(3)
    oracle = save(tmp_path, {**whole, **small})
    ids = torch.randint(3, 199, (90,), generator=torch.Generator().manual_seed(5)).tolist()
    assert_same_logits(run_paged, load_model(tmp_path, dtype="float32"), oracle, ids, atol=3e-4, rtol=1e-3)


@pytest.mark.parametrize("name", CROSS_ENCODERS)
def test_published_cross_encoders_give_the_oracles_logits(name: str, tmp_path: Path) -> None:
    whole, small, context = PUBLISHED[name]
    assert spec(whole).max_context_length == context
    torch.manual_seed(3)
    oracle = save(tmp_path, {**whole, **small})
    texts = [(torch.randperm(190, generator=torch.Generator().manual_seed(n))[:n] + 5).tolist() for n in (3, 70, 21)]
    with torch.no_grad():
        want = torch.cat([oracle(torch.tensor([text])).logits for text in texts])
    starts = torch.tensor([0, *map(len, texts)]).cumsum(0)
    model: Any = load_model(tmp_path, dtype="float32")
    found = model.encode(torch.tensor([token for text in texts for token in text]), starts)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-4)


def family_configs() -> dict[str, dict[str, Any]]:
    """A config.json of each family of decoders, as transformers writes it, and the published ones."""
    found = {name: {**whole, **small} for name, (whole, small, _) in PUBLISHED.items()}
    for name, (prefix, settings) in DECODERS.items():
        config = getattr(transformers, f"{prefix}Config")(**{**COMMON, **settings}).to_dict()
        model = f"{prefix.removesuffix('Text')}ForCausalLM"
        found[name] = {**json.loads(json.dumps(config)), "architectures": [model]}
    return found


@pytest.mark.parametrize("name", [*DECODERS, *PUBLISHED])
def test_a_missing_field_is_an_error_or_what_transformers_fills_in(name: str) -> None:
    config = family_configs()[name]
    written = {"architectures": config["architectures"], "model_type": config["model_type"]}
    compared = 0
    for field in config.keys() - {*written, "dtype", "torch_dtype"}:
        less = {key: value for key, value in config.items() if key != field}
        try:
            found = spec(less)
        except (CheckpointError, UnsupportedModelError):
            continue
        filled = {**json.loads(json.dumps(as_transformers_reads(less).to_dict())), **written}
        if "kv_lora_rank" in config:
            filled["num_key_value_heads"] = filled["num_attention_heads"]  # not a field of latent attention
        assert found == spec(filled), field
        compared += 1
    assert compared > 5


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "granite-3.3-8b-instruct",
            {"partial_rotary_factor": 0.5},
            "not supported in granite, only in phi3, glm, glm4",
        ),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
        ("Qwen3-Next-80B-A3B-Instruct", {"hidden_act": "gelu"}, "hidden_act of qwen3_next can only be silu"),
        ("qwen3-moe", {"use_sliding_window": True, "sliding_window": 9}, "use_sliding_window needs layer_types"),
        ("bge-reranker-v2-m3", {"is_decoder": True}, "supported as encoders only"),
        ("gte-reranker-modernbert-base", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is not"),
        ("DeepSeek-V2", {"topk_method": "noaux_tc"}, "there are: greedy, group_limited_greedy"),
    ],
)
def test_a_setting_that_is_not_done_here_is_refused_by_name(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec({**family_configs()[name], **changes})


@pytest.mark.parametrize("name", [name for name in DECODERS if not name.startswith("deepseek")])
@pytest.mark.parametrize(
    "stated", [{}, {"attention_bias": True}, {"attention_bias": False}, {"qkv_bias": False}], ids=str
)
def test_attentions_have_the_biases_of_transformers(name: str, stated: dict[str, bool]) -> None:
    config = {**family_configs()[name], **stated}
    with torch.device("meta"):
        oracle = getattr(transformers, config["architectures"][0])(as_transformers_reads(config))
    names = [each for each, _ in oracle.named_parameters() if ".self_attn." in each and each.endswith("proj.bias")]
    found = spec(config)
    assert isinstance(found, DecoderSpec)
    assert found.qkv_bias == any("q_proj" in each or "qkv_proj" in each for each in names)
    assert found.output_bias == any("o_proj" in each for each in names)
