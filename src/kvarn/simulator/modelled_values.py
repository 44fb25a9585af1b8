"""Structs of the cost model as fields of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

import msgspec
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from kvarn.costs.replica_model import LinkModel, ReplicaModel
from kvarn.costs.server_model import ServerModel
from kvarn.costs.speculation_model import SpeculationModel

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def _reader(kind: type[_Struct], name: str, source: str) -> Callable[[object], _Struct]:
    """Makes a struct of what stands in a file. `name` and `source` tell what it is, and where it comes from."""

    def read(value: object) -> _Struct:
        if isinstance(value, kind):
            return value
        if isinstance(value, Mapping):
            unknown = sorted(set(value) - set(kind.__struct_fields__))
            if unknown:
                raise ValueError(f"'{unknown[0]}' is no field of {name}, {source}")
        try:
            return msgspec.convert(value, kind, strict=False)  # YAML reads 1e-3 as a text
        except msgspec.ValidationError as error:
            raise ValueError(f"{error} (of {name}, {source})") from None

    return read


_SERIALIZER = PlainSerializer(msgspec.to_builtins)
_SCHEMA = WithJsonSchema({"type": "object"})

ModelledReplica = Annotated[
    ReplicaModel,
    PlainValidator(_reader(ReplicaModel, "a modelled replica", "as `kvarn bench profile` writes it")),
    _SERIALIZER,
    _SCHEMA,
]
ModelledSpeculation = Annotated[
    SpeculationModel,
    PlainValidator(_reader(SpeculationModel, "`speculation`", "see docs/guides/simulate_fleet.md")),
    _SERIALIZER,
    _SCHEMA,
]
ModelledLink = Annotated[
    LinkModel,
    PlainValidator(_reader(LinkModel, "a link", "which has `bytes_per_s` and `latency_s`")),
    _SERIALIZER,
    _SCHEMA,
]
ModelledServer = Annotated[
    ServerModel,
    PlainValidator(_reader(ServerModel, "a server", "see docs/guides/simulate_fleet.md")),
    _SERIALIZER,
    _SCHEMA,
]
