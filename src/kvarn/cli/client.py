"""`kvarn chat`, `kvarn complete` and `kvarn models`: a small client of a running server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import httpx
import typer

from kvarn.cli.application import application, expand_options
from kvarn.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, show, stop
from kvarn.cli.values import api_key as read_api_key
from kvarn.config.environment import API_KEY, SERVER_URL

_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
_MODEL_COLUMNS = ("model", "parent", "aliases", "state", "kind", "context", "running", "waiting")

app = application()

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


class ClientError(Exception):
    """The server gave no answer; the message says why. `status` is that of HTTP, where there was one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Server:
    url: Annotated[str, typer.Option(envvar=SERVER_URL, help="Root of the server, with or without /v1.")] = (
        "http://127.0.0.1:8000"
    )
    api_key: Annotated[
        str | None,
        typer.Option(envvar=API_KEY, parser=read_api_key, metavar="KEY", help="API key, sent as bearer token."),
    ] = None

    def models(self) -> list[dict[str, Any]]:
        """The models the server lists. Raises ClientError."""
        models: list[dict[str, Any]] = self.ask("GET", "models").get("data", [])
        return models

    def ask(self, method: str, operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a request; an operation that begins with a slash is not below `/v1`. Raises ClientError where
        the server cannot be reached, or refuses."""
        with self._request(method, operation, body) as response:
            return _json(response.read())

    def stream(self, operation: str, body: dict[str, Any]) -> Iterator[str]:
        """The pieces of an answer's text as they come; fields of `body` that are None are left out. Raises ClientError,
        also where the answer breaks off."""
        fields = {name: value for name, value in body.items() if value is not None} | {"stream": True}
        with self._request("POST", operation, fields) as response:
            for line in response.iter_lines():
                if not line.startswith("data:") or line == "data: [DONE]":
                    continue
                event = _json(line.removeprefix("data:"))
                if "error" in event:
                    raise ClientError(_message_of(event))
                for choice in event.get("choices", ()):
                    yield choice.get("text") or choice.get("delta", {}).get("content") or ""

    def first_model(self) -> str:
        """The first generating model that is ready, else the first generating one. Raises ClientError."""
        models = [model for model in self.models() if model.get("kind", "generate") == "generate"]
        if not models:
            raise ClientError(f"{self.url} serves no generating model that this key may use")
        return str(next((model for model in models if model.get("ready", True)), models[0])["id"])

    @contextmanager
    def _request(self, method: str, operation: str, body: dict[str, Any] | None = None) -> Iterator[httpx.Response]:
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        root = self.url.rstrip("/").removesuffix("/v1")
        url = f"{root}{operation}" if operation.startswith("/") else f"{root}/v1/{operation}"
        try:
            with httpx.stream(method, url, json=body, headers=headers, timeout=_TIMEOUT) as response:
                if response.status_code != 200:
                    status = response.status_code
                    raise ClientError(f"{_message_of(_json(response.read()))} (status {status})", status)
                yield response
        except httpx.ConnectError as error:
            raise ClientError(
                f"no server answers at {self.url} ({error}): start one with `kvarn serve`, or name another with --url"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ClientError(f"{url}: {str(error) or type(error).__name__}") from None


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The model and its sampling; None leaves the choice to the server."""

    model: Annotated[
        str | None, typer.Option("--model", "-m", show_default="the first that generates and is ready", help="Model.")
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer, in tokens.", show_default="the server's")
    ] = None
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy.", show_default="the server's")] = None

    def with_model(self, server: Server) -> AnswerOptions:
        """The same with a model that the server has, where none was named."""
        return self if self.model else replace(self, model=server.first_model())


@app.command("chat")
@expand_options
def chat(
    server: Server,
    options: AnswerOptions,
    question: Annotated[
        str | None,
        typer.Argument(help="A single question.", show_default="read from a pipe, or a chat at the terminal"),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.", show_default="none")] = None,
) -> None:
    """Chat with a model of a running server."""
    messages = [{"role": "system", "content": system}] if system else []
    question = question or _piped()
    with one_line_errors():
        options = options.with_model(server)
        if question is not None:
            messages.append({"role": "user", "content": question})
            _print(server.stream("chat/completions", asdict(options) | {"messages": messages}))
            return
    typer.echo(f"{options.model} at {server.url}; Ctrl-C stops an answer, Ctrl-D ends the chat.", err=True)
    import readline  # noqa: F401  gives `input` its line editing

    while (text := _next_line()) is not None:
        if text.strip():
            _take_turn(server, options, messages, text)


@app.command("complete")
@expand_options
def complete(
    server: Server,
    options: AnswerOptions,
    prompt: Annotated[str | None, typer.Argument(help="Text to continue.", show_default="read from a pipe")] = None,
) -> None:
    """Continue a text with a model of a running server."""
    prompt = prompt or _piped()
    if prompt is None:
        raise typer.BadParameter("give a prompt, or pipe one in", param_hint="prompt")
    with one_line_errors():
        _print(server.stream("completions", asdict(options.with_model(server)) | {"prompt": prompt}))


@app.command("models")
@expand_options
def models(server: Server, as_json: JsonOption = False) -> None:
    """List the models and adapters of a running server, with readiness and load."""
    with one_line_errors():
        listed = server.models()
    if not as_json:
        listed = [
            {
                **model,
                "model": model["id"],
                "parent": model.get("parent") or "-",
                "context": str(model.get("max_model_len") or "-"),
            }
            | (model.get("capacity") or {})
            for model in listed
        ]
    show(listed, _MODEL_COLUMNS, as_json=as_json, nothing="no models")


def _take_turn(server: Server, options: AnswerOptions, messages: list[dict[str, str]], text: str) -> None:
    """Ask one question; a failed question is removed from the conversation."""
    messages.append({"role": "user", "content": text})
    answer: list[str] = []
    try:
        _print(server.stream("chat/completions", asdict(options) | {"messages": messages}), answer)
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


def _next_line() -> str | None:
    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        typer.echo()
        return None


def _piped() -> str | None:
    """The text that is piped in; None at a terminal."""
    if sys.stdin.isatty():
        return None
    return sys.stdin.read().strip() or None


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the command with one line on an error of the server."""
    try:
        yield
    except ClientError as error:
        stop(str(error), EXIT_FAILED)
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
