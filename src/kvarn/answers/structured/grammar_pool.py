"""Grammars of requests, made in processes whose time and memory are bounded."""

from __future__ import annotations

import json
from collections import OrderedDict
from hashlib import blake2b

import msgspec

from kvarn.answers.errors import shutting_down
from kvarn.grammar.asked import Answered, AnswerGrammar, Asked, Checked, Refusal
from kvarn.sandbox.errors import ClosedError, LimitPassedError, ProcessEndedError
from kvarn.sandbox.pool import SandboxPool
from kvarn.sandbox.process import SandboxLimits
from kvarn.wire.openai.errors import ApiError, invalid_request

_PROCESSES = 4  # at most; each takes 50 MB. A tenant's work takes two of them at most.
_KEPT_BYTES = 16 * 1024 * 1024  # size of the grammars kept for requests that ask for the same: those used last


class GrammarPool:
    def __init__(self, limits: SandboxLimits) -> None:
        self._pool = SandboxPool("kvarn.grammar.build", limits, _PROCESSES)
        self._kept: OrderedDict[bytes, tuple[AnswerGrammar | Refusal, int]] = OrderedDict()
        self._kept_bytes = 0

    async def make(self, tenant: str, asked: Asked, payload: bytes) -> AnswerGrammar:
        """The grammar of what a request asks for; `payload` is the same, encoded. Raises `ApiError`: 400, it is broken,
        cannot be enforced, or takes more than it may."""
        digest = blake2b(payload, digest_size=16).digest()
        kept = self._kept.pop(digest, None)
        if kept is None:
            reply = await self._call(tenant, asked, payload)
            kept = msgspec.json.decode(reply, type=AnswerGrammar | Refusal), len(reply)
            _, replaced = self._kept.pop(digest, (None, 0))  # another request made the same meanwhile
            self._kept_bytes += len(reply) - replaced
        made, _ = self._kept[digest] = kept
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            _, (_, size) = self._kept.popitem(last=False)
            self._kept_bytes -= size
        if isinstance(made, Refusal):
            raise invalid_request(made.message, made.param)
        return made

    async def check(self, tenant: str, parts: list[tuple[str, str]]) -> str | None:
        """The fault of a finished answer, by schema and text of each part that is JSON; None: it has none. Raises
        `SandboxError`: it cannot be found out within the bounds."""
        payload = json.dumps(msgspec.to_builtins(Answered(parts))).encode()
        reply = await self._pool.call(f"{tenant} answers", payload)
        return msgspec.json.decode(reply, type=Checked).problem

    @property
    def pids(self) -> list[int]:
        return self._pool.pids

    async def close(self) -> None:
        await self._pool.close()

    async def _call(self, tenant: str, asked: Asked, payload: bytes) -> bytes:
        try:
            return await self._pool.call(tenant, payload)
        except LimitPassedError as error:
            raise _refusal(asked, f"cannot be compiled {error}") from None
        except ProcessEndedError as error:
            raise _refusal(asked, f"cannot be compiled: the process {error}") from None
        except ClosedError:
            raise shutting_down() from None


def encode(asked: Asked) -> bytes:
    """Encode the form that a request asks for, as `make` takes it. Raises `ApiError`: 400, it nests too deeply."""
    try:
        return json.dumps(msgspec.to_builtins(asked)).encode()
    except RecursionError:
        raise _refusal(asked, "nests too deeply") from None


def _refusal(asked: Asked, why: str) -> ApiError:
    param = "tools" if asked.wanted is None else asked.wanted.param
    return invalid_request(f"{param!r} {why}. Make it simpler.", param, "grammar_limit_exceeded")
