"""`kvarn requests` against a gateway: requests are listed, and one is explained in 80 columns."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from gateway_fixtures import wait_for
from kvarn.cli.main import app
from kvarn.cli.requests import WIDTH, duration, lines_of_parts

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


def run(server: Any, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["requests", *arguments, "--url", server.url])


def ask(server: Any, client: httpx.Client, **fields: Any) -> str:
    """The id of an answer whose request is kept."""
    answer: str = client.post("/v1/chat/completions", json=CHAT | fields).json()["id"]

    def is_there() -> bool:
        server.do(server.gateway.control.traces.keeper.write())
        return bool(client.get("/console/api/requests", params={"id": answer}).json()["data"])

    wait_for(is_there, "the request to be kept")
    return answer


def test_requests_are_listed_by_filters(server: Any, client: httpx.Client) -> None:
    answer = ask(server, client, prompt_cache_key="cli-listed")
    done = run(server, "list", "--session", "cli-listed", "--since", "1h", "--order", "slowest", "--status", "2xx")
    assert done.exit_code == 0, done.output
    head, row = done.stdout.splitlines()
    assert head.split()[:3] == ["id", "started", "model"] and row.startswith(answer[9:])
    (line,) = run(server, "list", "--session", "cli-listed", "--json").stdout.splitlines()
    assert json.loads(line)["output_tokens"] == 5
    assert run(server, "list", "--session", "cli-nobody").stdout == "no requests\n"


def test_one_request_is_explained_in_80_columns(server: Any, client: httpx.Client) -> None:
    answer = ask(server, client, prompt_cache_key="cli-explained")
    done = run(server, "why", answer)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("POST /v1/chat/completions   tiny   200 finished")
    detail = json.loads(run(server, "why", answer, "--json").stdout)
    assert detail["explanation"]["sentence"] in lines
    shown = [line for line in lines if "█" in line or "▏" in line]
    assert [line.split()[0] for line in shown] == [part["name"].split()[0] for part in detail["explanation"]["parts"]]
    assert max(map(len, shown)) <= WIDTH


def test_what_is_not_kept_or_not_one_is_told_in_a_line(server: Any, client: httpx.Client) -> None:
    answers = [ask(server, client, prompt_cache_key="cli-two") for _ in range(2)]
    nothing = run(server, "why", "f" * 32)
    assert nothing.exit_code == 1 and "was not kept" in nothing.stderr
    beginning = next(answers[0][:n] for n in range(len(answers[0]), 0, -1) if answers[1].startswith(answers[0][:n]))
    several = run(server, "why", beginning)
    assert several.exit_code == 1 and "give one of their ids" in several.stderr
    refused = run(server, "list", "--status", "many")
    assert refused.exit_code == 1 and "status" in refused.stderr


def test_bars_stand_where_their_parts_do() -> None:
    parts = [
        {"name": "queue", "begin_s": 0.0, "end_s": 1.0},
        {"name": "a very long name of a part", "begin_s": 1.0, "end_s": 2.0},
        {"name": "settle", "begin_s": 2.0, "end_s": 2.0},
    ]
    lines = list(lines_of_parts(parts, 2.0))
    begin, room = WIDTH - 53, 53
    assert [line[begin:].rstrip() for line in lines] == [
        "█" * round(room / 2),
        " " * round(room / 2) + "█" * (room - round(room / 2)),
        " " * (room - 1) + "▏",
    ]
    assert all(len(line) <= WIDTH for line in lines)
    assert len(list(lines_of_parts(parts[2:], 0.0))) == 1


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("15m", 900), ("1.5h", 5400), ("7d", 604_800)])
def test_durations_are_read(text: str, value: float) -> None:
    assert duration(text) == value


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1w", "1 h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no duration"):
        duration(text)
