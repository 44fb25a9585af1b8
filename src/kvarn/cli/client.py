"""`kvarn chat`, `kvarn complete` and `kvarn models`: a small client of a running server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

EXIT_FAILED = 1
"""The server cannot be reached, or refuses the request."""
EXIT_INTERRUPTED = 130

_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
_PIPE_WIDTH = 200


class ClientError(Exception):
    """The server gave no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A server and what to ask it for."""

    url: str
    """Its root, with or without `/v1`."""
    api_key: str | None = None
    model: str | None = None
    """None: see `first_model`."""
    max_tokens: int | None = None
    temperature: float | None = None

    def models(self) -> list[dict[str, Any]]:
        """What the server lists.

        Raises:
            ClientError: It cannot be reached, or refuses.
        """
        with self._request("GET", "models") as response:
            models: list[dict[str, Any]] = _json(response.read()).get("data", [])
        return models

    def stream(self, operation: str, **body: Any) -> Iterator[str]:
        """The pieces of an answer's text as they come.

        Args:
            operation: `chat/completions` or `completions`.
            body: Fields of the request besides those that the connection knows.

        Raises:
            ClientError: The server cannot be reached or refuses, or the answer breaks off.
        """
        options = {"model": self.model or self.first_model(), "stream": True}
        options |= {"max_tokens": self.max_tokens, "temperature": self.temperature}
        body = {name: value for name, value in (options | body).items() if value is not None}
        with self._request("POST", operation, body) as response:
            for line in response.iter_lines():
                if not line.startswith("data:") or line == "data: [DONE]":
                    continue
                event = _json(line.removeprefix("data:"))
                if "error" in event:
                    raise ClientError(_message_of(event))
                for choice in event.get("choices", ()):
                    yield choice.get("text") or choice.get("delta", {}).get("content") or ""

    def first_model(self) -> str:
        """The model to ask where none was named: the first that writes and is ready, else the first that writes.

        Raises:
            ClientError: The server cannot be reached, or shows none.
        """
        models = [model for model in self.models() if model.get("kind", "generate") == "generate"]
        if not models:
            raise ClientError(f"{self.url} serves no generating model that this key may use")
        return str(next((model for model in models if model.get("ready", True)), models[0])["id"])

    @contextmanager
    def _request(self, method: str, operation: str, body: dict[str, Any] | None = None) -> Iterator[httpx.Response]:
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        url = f"{self.url.rstrip('/').removesuffix('/v1')}/v1/{operation}"
        try:
            with httpx.stream(method, url, json=body, headers=headers, timeout=_TIMEOUT) as response:
                if response.status_code != 200:
                    raise ClientError(f"{_message_of(_json(response.read()))} (status {response.status_code})")
                yield response
        except httpx.ConnectError as error:
            raise ClientError(
                f"no server answers at {self.url} ({error}): start one with `kvarn serve`, or name another with --url"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ClientError(f"{url}: {str(error) or type(error).__name__}") from None


def chat(connection: Connection, question: str | None, system: str | None) -> None:
    """Answer one question, or talk until the input ends."""
    messages = [{"role": "system", "content": system}] if system else []
    question = question or _piped()
    with _one_line_errors():
        if question is not None:
            _print(connection.stream("chat/completions", messages=[*messages, {"role": "user", "content": question}]))
            return
        connection = replace(connection, model=connection.model or connection.first_model())
    typer.echo(f"{connection.model} at {connection.url}; Ctrl-C stops an answer, Ctrl-D ends the chat.", err=True)
    import readline  # noqa: F401  gives `input` its line editing

    while (text := _ask()) is not None:
        if text.strip():
            _take_turn(connection, messages, text)


def complete(connection: Connection, prompt: str | None) -> None:
    """Continue a text."""
    prompt = prompt or _piped()
    if prompt is None:
        raise typer.BadParameter("give a prompt, or pipe one in", param_hint="prompt")
    with _one_line_errors():
        _print(connection.stream("completions", prompt=prompt))


def show_models(connection: Connection, as_json: bool) -> None:
    """List the models with their readiness."""
    with _one_line_errors():
        models = connection.models()
    if as_json:
        for model in models:
            typer.echo(json.dumps(model))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("model", "aliases", "state", "kind", "context", "running", "waiting"):
        table.add_column(column, no_wrap=True)
    for model in models:
        capacity = model.get("capacity") or {}
        state = model.get("state") or "-"
        cells = [model["id"], " ".join(model.get("aliases", ())), state, model.get("kind"), model.get("max_model_len")]
        cells += [capacity.get("running"), capacity.get("waiting")]
        table.add_row(*["-" if cell in (None, "") else str(cell) for cell in cells])
    (Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)).print(table)


def _take_turn(connection: Connection, messages: list[dict[str, str]], text: str) -> None:
    """One question and its answer; one that fails is as if it had not been asked."""
    messages.append({"role": "user", "content": text})
    answer: list[str] = []
    try:
        _print(connection.stream("chat/completions", messages=messages), answer)
    except KeyboardInterrupt:
        typer.echo()
    except ClientError as error:
        typer.echo(f"error: {error}", err=True)
        del messages[-1]
        return
    messages.append({"role": "assistant", "content": "".join(answer)})


def _print(pieces: Iterator[str], kept: list[str] | None = None) -> None:
    for piece in pieces:
        typer.echo(piece, nl=False)
        if kept is not None:
            kept.append(piece)
    typer.echo()


def _ask() -> str | None:
    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        typer.echo()
        return None


def _piped() -> str | None:
    """What is piped in; None at a terminal."""
    if sys.stdin.isatty():
        return None
    return sys.stdin.read().strip() or None


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _json(text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ClientError("the answer is not JSON: is this the URL of an OpenAI-compatible server?") from None
    return value if isinstance(value, dict) else {}


def _message_of(answer: dict[str, Any]) -> str:
    error = answer.get("error")
    return str(error.get("message") if isinstance(error, dict) else error or answer.get("message") or answer)
