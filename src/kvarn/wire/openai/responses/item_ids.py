"""Ids of items, as clients may send them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvarn.wire.openai.common import EMPTY_IS_NULL

ItemId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
OptionalId = Annotated[ItemId | None, EMPTY_IS_NULL]
