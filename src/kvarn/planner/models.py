"""Models that are planned for: a preset by its name, a folder with a config.json, or the content of one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvarn.planner.errors import PlanError
from kvarn.shapes.packing import Dtype, Kernels, Quantization
from kvarn.specs.errors import CheckpointError, ModelError
from kvarn.specs.read import read_decoder
from kvarn.specs.spec import DecoderSpec
from kvarn.specs.stored import StoredQuantization
from kvarn.specs.weight_bytes import WeightForms, num_parameters
from kvarn.text.checkpoint import PACKAGED, local_checkpoint
from kvarn.text.json_file import read_json
from kvarn.text.local_path import local_path


class UnknownModelError(PlanError):
    """A name that is neither a preset nor a folder."""


@dataclass(frozen=True)
class PlannedModel:
    name: str
    spec: DecoderSpec
    stored: StoredQuantization | None
    """The checkpoint's quantization; None: its weights are plain."""
    source: str

    @cached_property
    def num_parameters(self) -> int:
        return num_parameters(self.spec)

    def forms(
        self, kernels: Kernels = "gpu", dtype: Dtype = "bfloat16", quantization: Quantization | None = None
    ) -> WeightForms:
        """Forms of its weights; `quantization`: done while it is loaded."""
        return WeightForms(kernels=kernels, dtype=dtype, stored=self.stored, quantization=quantization)


def find_model(text: str, *, max_context_length: int | None = None) -> PlannedModel:
    """A model by the path of a folder with a config.json, of such a file, or by the name of a preset or packaged model.

    Raises PlanError for a file that describes no model, UnknownModelError for a name that is neither.
    """
    try:
        path = local_path(text)
        if text in PACKAGED:
            path = local_checkpoint(text) or path
        if path.is_dir():
            path /= "config.json"
            if not path.is_file():
                raise PlanError(f"there is no config.json in {text}: name a folder that holds one")
        if not path.is_file():
            return preset(text, max_context_length=max_context_length)
        config = read_json(path)
    except CheckpointError as error:
        raise PlanError(str(error)) from error
    except OSError:  # a name that the file system refuses
        return preset(text, max_context_length=max_context_length)
    name = path.resolve().parent.name
    return described(config, name=name, source=str(path), max_context_length=max_context_length)


def described(
    config: Mapping[str, Any], *, name: str = "", source: str = "config.json", max_context_length: int | None = None
) -> PlannedModel:
    """The model of a config.json. Raises PlanError, which names the wrong field."""
    where = Path(source)
    try:
        return PlannedModel(
            name=name or str(config.get("_name_or_path") or config.get("model_type") or "model"),
            spec=read_decoder(config, where, max_context_length=max_context_length),
            stored=StoredQuantization.of(config, where),
            source=source,
        )
    except (CheckpointError, ModelError) as error:
        raise PlanError(str(error)) from error


def preset(name: str, *, max_context_length: int | None = None) -> PlannedModel:
    """A well-known model by its name on the hub, with or without the organisation. Raises UnknownModelError."""
    rows = _presets()
    row = rows.get(name.strip().lower())
    if row is None:
        near = [rows[each]["name"] for each in difflib.get_close_matches(name.strip().lower(), rows, n=12, cutoff=0.5)]
        known = list(dict.fromkeys(near))[:5] or preset_names()
        raise UnknownModelError(
            f"{name[:200]!r} is neither a folder with a config.json nor a model whose sizes Kvarn knows. "
            f"{'Near names' if near else 'It knows'}: {', '.join(known)}. Else name a folder with the model's "
            "config.json; its weights are not needed"
        )
    found = described(row["config"], name=row["name"], source=row["name"], max_context_length=max_context_length)
    return replace(found, source=row["source"])


def preset_names() -> list[str]:
    """Names of all presets, as the hub spells them."""
    return list(dict.fromkeys(row["name"] for row in _presets().values()))


@cache
def _presets() -> dict[str, dict[str, Any]]:
    """Rows of presets.json by all of their names, in lower case."""
    found: dict[str, dict[str, Any]] = {}
    for row in json.loads(files("kvarn.planner").joinpath("presets.json").read_text(encoding="utf-8")):
        owner, _, short = row["name"].partition("/")
        for each in (short, *row["also"]):
            found[each.lower()] = found[f"{owner}/{each}".lower()] = row
    return found
