"""Load of a model's experts: for metrics, and in a file that places experts at the next start."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from kvarn.kernels.device.staging import Fetched
from kvarn.models import Decoder
from kvarn.wire.engine_stats import ExpertStats
from kvarn.wire.messages import EngineStats

Tokens = Mapping[int, Sequence[int]]

log = logging.getLogger(__name__)


class ExpertLoadError(Exception):
    """The file of the experts' load cannot be used."""


class _File(msgspec.Struct):
    layers: dict[int, list[int]] = {}


def read_expert_load(file: Path) -> Tokens:
    """Load that an earlier engine has written; empty if there is no file yet. Raises `ExpertLoadError`."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=_File).layers
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ExpertLoadError(f"experts.load_file {file} cannot be read: {error}. Delete it to begin anew.") from error


class ExpertLoads:
    """Tokens of all experts of this rank's layers since the start, on whichever rank the experts are. `file` keeps
    them."""

    def __init__(self, model: Decoder, file: str | None) -> None:
        self._layers = model.expert_layers
        self._visits = model.expert_visits
        self._fetched: Fetched | None = None
        self._file = None if file is None else Path(file).expanduser()

    def enter(self, stats: EngineStats) -> EngineStats:
        """Add the experts' load to gauges. A GPU's counts were fetched by the call before: nothing waits."""
        if not self._layers:
            return stats
        by_rank = [0.0] * next(iter(self._layers.values())).parallel.world_size
        busiest = mean = 0.0
        for experts, counted in zip(self._layers.values(), self._counted(), strict=True):
            tokens = counted.tolist()
            busiest += max(tokens)
            mean += sum(tokens) / len(tokens)
            loads = experts.placement.loads(tokens, len(by_rank))
            by_rank = [total + own for total, own in zip(by_rank, loads, strict=True)]
        load = ExpertStats(
            tokens_total={str(rank): round(tokens) for rank, tokens in enumerate(by_rank)},
            imbalance=busiest / mean if mean else 0.0,
        )
        return msgspec.structs.replace(stats, experts=load)

    def _counted(self) -> list[npt.NDArray[np.generic]]:
        if self._visits is None:
            return [each.visits for each in self._layers.values()]
        before = self._fetched or Fetched.start([self._visits])
        self._fetched = Fetched.start([self._visits])
        rows = iter(before.wait()[0])
        return [each.visits if each.grouped is None else next(rows) for each in self._layers.values()]

    def close(self) -> None:
        """Write the file, unless nothing was computed. Layers of other stages stay as they are in it."""
        counted = {layer: each.tokens.tolist() for layer, each in self._layers.items() if each.tokens.any()}
        if self._file is None or not counted:
            return
        try:
            layers = {**read_expert_load(self._file), **counted}
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            part.write_bytes(msgspec.json.encode(_File(dict(sorted(layers.items())))))
            part.replace(self._file)
        except (OSError, ExpertLoadError) as error:
            log.warning("expert load could not be written", extra={"file": str(self._file), "reason": str(error)})
