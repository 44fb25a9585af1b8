"""A request's wishes about the response cache, with LiteLLM's names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field


class CacheOptions(BaseModel):
    """Options of a request about the response cache of its project. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, frozen=True, populate_by_name=True)

    no_cache: bool = Field(False, alias="no-cache")  # ask the model, whatever is cached
    no_store: bool = Field(False, alias="no-store")  # keep nothing of the answer
    ttl: float | None = Field(None, gt=0)  # seconds that the answer is kept, less than the server keeps it
    s_maxage: float | None = Field(None, alias="s-maxage", ge=0)  # oldest answer that will do, in seconds
    namespace: str | None = Field(None, max_length=256)  # only requests with the same one share answers
    sampled: bool = False  # take and keep answers that were drawn at random, without a seed
    semantic: bool = True  # an answer to a question that means the same will do, where the project allows it


NO_CACHE_OPTIONS = CacheOptions()
NEITHER = CacheOptions(no_cache=True, no_store=True)
"""Wishes of a request that has nothing to do with the cache."""
_MAX_AGE = re.compile(r"max-age=([0-9]{1,9})")


def cache_options_of_headers(headers: Iterable[tuple[bytes, bytes]]) -> CacheOptions:
    """The wishes in `cache-control` (`no-cache`, `no-store`, `max-age=SECONDS`) and `x-kvarn-cache: bypass`."""
    found = {name: value for name, value in headers if name in (b"cache-control", b"x-kvarn-cache")}
    if not found:
        return NO_CACHE_OPTIONS
    if found.get(b"x-kvarn-cache", b"").strip().lower() == b"bypass":
        return NEITHER
    words = [word.strip() for word in found.get(b"cache-control", b"").decode("latin-1").lower().split(",")]
    age = next(filter(None, map(_MAX_AGE.fullmatch, words)), None)
    return CacheOptions(
        no_cache="no-cache" in words, no_store="no-store" in words, s_maxage=None if age is None else float(age[1])
    )
