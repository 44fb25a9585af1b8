"""Errors in OpenAI's shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

RETRY_AFTER_S = 1.0  # seconds a client is told to wait where nothing better is known


class ApiError(Exception):
    """Error that a client receives.

    `status` is the HTTP status; `message`, `type`, `param` and `code` are the fields of OpenAI's error object;
    `headers` go into the HTTP answer (such as Retry-After).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # noqa: A002  OpenAI's name
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class ContextLengthError(ApiError):
    """The 400 for what is longer than a model's context, in the words that OpenAI's clients look for. `output_tokens`:
    those asked for besides the prompt; at least 1 where an answer is written."""

    def __init__(self, limit: int, prompt_tokens: int, output_tokens: int, param: str) -> None:
        total = prompt_tokens + output_tokens
        reduce = "prompt or completion" if output_tokens else "input"
        super().__init__(
            400,
            f"This model's maximum context length is {limit} tokens. However, you requested {total} tokens "
            f"({prompt_tokens} in the prompt, {output_tokens} in the completion). Please reduce the length of "
            f"the {reduce} (context_length_exceeded).",  # LangChain looks for the code in the message
            code="context_length_exceeded",
            param=param,
        )
        self.limit = limit
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens


def invalid_request(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """A 400 about the field `param`."""
    return ApiError(400, message, code=code, param=param)


def model_not_found(name: str, served: list[str]) -> ApiError:
    """The 404 for a model that is not served here; names those that are."""
    known = ", ".join(repr(model) for model in served)
    return ApiError(
        404, f"The model {name!r} does not exist. This server has: {known}.", code="model_not_found", param="model"
    )


def unavailable(message: str, code: str, retry_after_s: float | None = None) -> ApiError:
    """A 503 with Retry-After."""
    return ApiError(503, message, type="server_error", code=code, headers=retry_after(retry_after_s))


def retry_after(seconds: float | None) -> dict[str, str]:
    """The Retry-After header, in whole seconds."""
    return {"retry-after": str(max(1, math.ceil(RETRY_AFTER_S if seconds is None else seconds)))}
