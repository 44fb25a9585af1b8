"""From config.json to a decoder's spec: what the loader and the planner both do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvarn.specs.errors import UnsupportedModelError
from kvarn.specs.families.decoder_spec import decoder_spec
from kvarn.specs.families.hf_config import CheckpointKind, DecoderConfig
from kvarn.specs.families.table import FAMILIES
from kvarn.specs.spec import DecoderSpec
from kvarn.text.architectures import describe_unsupported, find_architecture
from kvarn.text.json_file import validate


def architecture_of(config: Mapping[str, Any], where: Path) -> str:
    """The architecture of a config.json, which is at `where`. Raises UnsupportedModelError, CheckpointError."""
    kind = validate(CheckpointKind, dict(config), where)
    found = find_architecture(kind.architectures, kind.model_type)
    if found is None:
        raise UnsupportedModelError(describe_unsupported(str(where), kind.architectures, kind.model_type))
    return found


def validated_decoder(architecture: str, config: Mapping[str, Any], where: Path) -> DecoderConfig:
    """A decoder's config.json, with its family's defaults for fields that it leaves out. Raises CheckpointError."""
    return validate(DecoderConfig, {**FAMILIES[architecture].defaults, **config}, where)


def read_decoder(config: Mapping[str, Any], where: Path, *, max_context_length: int | None = None) -> DecoderSpec:
    """The decoder of a config.json. Raises UnsupportedModelError for what generates no text, CheckpointError."""
    architecture = architecture_of(config, where)
    if architecture not in FAMILIES:
        raise UnsupportedModelError(f"{where}: {architecture} is no decoder that Kvarn knows: it generates no text")
    found = validated_decoder(architecture, config, where)
    return decoder_spec(architecture, found, max_context_length=max_context_length)
