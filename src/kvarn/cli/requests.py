"""`kvarn requests`: requests that are over, as the server keeps them, and why one of them took as long as it did."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

import typer

from kvarn.cli.application import application, expand_options
from kvarn.cli.client import JsonOption, Server, one_line_errors
from kvarn.cli.output import EXIT_FAILED, show, stop
from kvarn.clock import SYSTEM_CLOCK
from kvarn.explain.words import seconds

WIDTH = 80
_PATH = "/console/api/requests"
_COLUMNS = ("id", "started_at", "model", "status", "outcome", "total", "first_token", "in", "out", "of")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NAME_WIDTH, _TIME_WIDTH = 14, 11

app = application(help="List requests that are over, and show why one was slow.", no_args_is_help=True)


@app.callback()
def requests() -> None:
    """List requests that are over, and show why one was slow."""


def duration(text: str) -> float:
    """Seconds of a duration such as `90s`, `15m`, `1.5h` or `7d`."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration such as 90s, 15m, 2h or 7d")
    return float(found[1]) * _SECONDS[found[2]]


@dataclass(frozen=True, slots=True)
class Filters:
    """Restrictions of the list; None restricts nothing."""

    id: Annotated[str | None, typer.Option(help="Id of a request or of its answer, or its beginning.")] = None
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model.")] = None
    version: Annotated[str | None, typer.Option(help="Version of the model.")] = None
    session: Annotated[str | None, typer.Option(help="The client's session.")] = None
    user: Annotated[str | None, typer.Option(help="The client's own user.")] = None
    key: Annotated[str | None, typer.Option(help="Id of an API key.")] = None
    project: Annotated[str | None, typer.Option(help="Id of a project.")] = None
    endpoint: Annotated[str | None, typer.Option(help="Path, such as /v1/chat/completions.")] = None
    status: Annotated[str | None, typer.Option(help="HTTP status, or a class such as 5xx.")] = None
    outcome: Annotated[
        Literal["finished", "aborted", "refused", "failed"] | None, typer.Option(help="End of the request.")
    ] = None
    reason: Annotated[
        Literal["ordinary", "slow", "refused", "error"] | None, typer.Option(help="Reason to keep it.")
    ] = None
    min_total: Annotated[float | None, typer.Option(min=0, help="Seconds that it took at least.")] = None
    min_ttft: Annotated[float | None, typer.Option(min=0, help="Seconds to its first token at least.")] = None


@app.command("list")
@expand_options
def list_requests(
    server: Server,
    filters: Filters,
    since: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Begun in the last 15m, 2h, 7d, ...")
    ] = None,
    order: Annotated[Literal["newest", "slowest"], typer.Option(help="Those that come first.")] = "newest",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="Requests at most.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List requests that the server keeps."""
    query: dict[str, Any] = {name: value for name, value in asdict(filters).items() if value is not None}
    query |= {"order": order, "limit": limit}
    if since is not None:
        query["since"] = SYSTEM_CLOCK.time() - since
    with one_line_errors():
        found = server.ask("GET", f"{_PATH}?{urlencode(query)}")
    if not found["data"] and not found["enabled"]:
        stop("this server keeps no requests: set traces.kept.enabled", EXIT_FAILED)
    rows = found["data"] if as_json else map(_shown, found["data"])
    show(rows, _COLUMNS, as_json=as_json, nothing="no requests")


@app.command("why")
@expand_options
def explain_request(
    server: Server,
    request: Annotated[str, typer.Argument(metavar="ID", help="Id of the request or of its answer.")],
    as_json: Annotated[bool, typer.Option("--json", help="All that is known of it, as one JSON object.")] = False,
) -> None:
    """Show where the time of a request went."""
    with one_line_errors():
        found = server.ask("GET", f"{_PATH}?{urlencode({'id': request, 'limit': 2})}")["data"]
        exact = [row for row in found if request in (row["id"], row["request_id"])]
        if not found:
            stop(f"there is no request {request!r}: it was not kept, or has been deleted", EXIT_FAILED)
        if len(found) > 1 and len(exact) != 1:
            stop(f"more than one request is called {request!r}: give one of their ids", EXIT_FAILED)
        detail = server.ask("GET", f"{_PATH}/{quote((exact or found)[0]['id'], safe='')}")
    if as_json:
        show([detail], as_json=True)
        return
    for line in explained(detail):
        typer.echo(line)


def explained(detail: Mapping[str, Any]) -> Iterator[str]:
    """Lines about a request: its head, the sentence, what would have helped, its parts as bars."""
    row, explanation = detail["request"], detail["explanation"]
    at = datetime.fromtimestamp(row["started_at"], UTC).isoformat(" ", "milliseconds").replace("+00:00", "Z")
    of = " / ".join(filter(None, (row["organization"]["name"], row["project"]["name"], (row["key"] or {}).get("name"))))
    status = f"{row['status'] or '-'} {row['outcome']}{' ' + row['error_code'] if row['error_code'] else ''}"
    cached = f" ({row['cached_tokens']:,} cached)" if row["cached_tokens"] else ""
    yield f"{detail['name']}   {row['model']}   {status}   {seconds(row['total_s'])}"
    yield f"{at}   {of}   {row['request_id']}"
    yield f"{row['input_tokens']:,} in{cached} + {row['output_tokens']:,} out"
    yield ""
    yield explanation["sentence"]
    yield from (each["text"] for each in explanation["counterfactuals"])
    yield ""
    yield from lines_of_parts(explanation["parts"], explanation["total_s"])


def lines_of_parts(parts: Sequence[Mapping[str, Any]], total_s: float, width: int = WIDTH) -> Iterator[str]:
    """Parts one below the other: name, time, and a bar on the axis of the request. A part that hardly took time has a
    thin bar."""
    room = width - _NAME_WIDTH - _TIME_WIDTH - 2
    for part in parts:
        begin, end = (round(part[name] / total_s * room) if total_s else 0 for name in ("begin_s", "end_s"))
        bar = " " * min(begin, room - 1) + ("█" * (end - begin) or "▏")
        took = seconds(part["end_s"] - part["begin_s"])
        yield f"{part['name'][:_NAME_WIDTH]:<{_NAME_WIDTH}} {took:>{_TIME_WIDTH}} {bar}"


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    times = {"total": seconds(row["total_s"]), "first_token": "-" if row["ttft_s"] is None else seconds(row["ttft_s"])}
    tokens = {"in": row["input_tokens"], "out": row["output_tokens"]}
    return row | times | tokens | {"of": (row["key"] or row["project"])["name"]}
