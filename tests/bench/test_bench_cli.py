"""`kvarn bench` from the shell, end to end, and the files it writes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from kvarn.charts.plots import Frame, Series, cumulative, line_plot, thin, ticks
from kvarn.cli.bench import app

COMMAND = [sys.executable, "-c", "from kvarn.cli.bench import app; app(prog_name='kvarn bench')"]
VOID = {"meta", "br", "link", "img", "input", "hr"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


class Balance(HTMLParser):
    """Fails where tags do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass


def test_a_closed_loop_prints_a_table_and_writes_json_and_html(serve, behaviour, tmp_path):
    server = serve(behaviour(first_s=0.02, gap_s=0.002, cached_tokens=4))
    as_json, as_html = tmp_path / "out.json", tmp_path / "out.html"
    done = bench(
        *("--url", server.url, "--api-key", "sk-secret", "--concurrency", "4", "--requests", "12"),
        *("--prompt-tokens", "10:20", "--shared-prefix-tokens", "6", "--output-tokens", "5", "--seed", "7"),
        *("--slo-ttft-ms", "5000", "--slo-tpot-ms", "5000", "--json", str(as_json), "--html", str(as_html)),
    )
    assert done.returncode == 0, done.stderr
    for word in ("TTFT", "TPOT", "ITL", "E2E", "p95", "12 succeeded, 0 failed", "100.0%", "scripted"):
        assert word in done.stdout
    read = json.loads(as_json.read_text())
    assert read["summary"]["goodput"]["ratio"] == 1.0
    assert read["summary"]["cached_tokens"] == 48
    assert read["parameters"]["prompt_tokens"] == {"low": 10, "high": 20}
    assert read["parameters"]["model"] == "scripted"
    assert [len(body["prompt"]) for body in server.bodies[1:]] == [
        row["prompt_tokens"] for row in sorted(read["requests"], key=lambda row: row["sent_s"])
    ]
    assert "sk-secret" not in as_json.read_text() + as_html.read_text() + done.stdout + done.stderr
    check_report(as_html.read_text(), read["summary"])


def check_report(page: str, summary: dict) -> None:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    drawings = [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page)]
    assert len(drawings) == 5
    namespace = "{http://www.w3.org/2000/svg}"
    assert len(drawings[4].findall(f"{namespace}circle")) == summary["succeeded"]
    assert f"{summary['output_tokens_per_s']:,.1f}" in page
    assert f"{summary['ttft_ms']['p50']:.1f}" in page
    assert "prefers-color-scheme: dark" in page
    assert "<script" not in page
    assert not re.search(r'(src|href)="', page)  # opens offline


def test_an_open_loop_sends_the_same_timetable_for_the_same_seed(serve, behaviour, tmp_path):
    server, out = serve(behaviour()), tmp_path / "out.json"
    timetables = []
    for _ in range(2):
        arguments = ("--url", server.url, "--model", "m", "--rate", "40", "--duration", "0.5", "--json", str(out))
        assert bench(*arguments, "--output-tokens", "2").returncode == 0
        rows = json.loads(out.read_text())["requests"]
        timetables.append([row["scheduled_s"] for row in rows])
        assert all(row["lag_ms"] >= 0 for row in rows)
    assert timetables[0] == timetables[1]
    assert timetables[0] == sorted(timetables[0])


def test_a_trace_is_replayed_with_its_shared_blocks(serve, behaviour, tmp_path):
    server, trace = serve(behaviour()), tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 700, "output_length": 8, "hash_ids": [0, 1]},
        {"timestamp": 2000, "input_length": 1024, "output_length": 16, "hash_ids": [0, 2]},
        {"timestamp": 9000, "input_length": 10, "output_length": 1, "hash_ids": [3]},
    ]
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    done = bench(
        *("--url", server.url, "--model", "m", "--trace", str(trace), "--time-scale", "0.01", "--warmup", "0"),
        *("--length-scale", "0.125", "--max-requests", "2"),
    )
    assert done.returncode == 0, done.stderr
    first, second = (body["prompt"] for body in server.bodies)
    assert (len(first), len(second)) == (64 + 24, 128)
    assert first[:64] == second[:64]
    assert first[64] != second[64]
    assert [body["max_tokens"] for body in server.bodies] == [1, 2]


def test_turns_of_a_conversation_are_sent_when_the_one_before_is_answered(serve, behaviour, tmp_path):
    server, trace = serve(behaviour(first_s=0.05)), tmp_path / "trace.jsonl"
    agent = {"t": 1, "type": "subagent", "requests": [{"t": 1, "in": 10, "out": 2, "hash_ids": [7], "api_time": 1}]}
    calls = [{"t": 0, "in": 64, "out": 2, "hash_ids": [1], "api_time": 1}, agent]
    calls.append({"t": 3, "in": 128, "out": 3, "hash_ids": [1, 2]})
    trace.write_text(json.dumps({"id": "a\nb", "requests": calls}))
    arguments = ("--url", server.url, "--model", "m", "--trace", str(trace), "--time-scale", "0.01", "--warmup", "0")
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == 0, done.stderr
    first, agents, second = (body["prompt"] for body in server.bodies)
    assert (len(first), len(agents), len(second)) == (64, 10, 128)
    assert second[:64] == first
    assert server.most_running == 1
    told = [re.search(r"x-session-id: (.*)\r", head)[1] for head in server.headers]
    assert told == ["a%0Ab", "a%0Ab/0", "a%0Ab"]
    server.bodies.clear()
    done = CliRunner().invoke(app, [*arguments, "--rate", "90", "--duration", "0.1"])
    assert done.exit_code == 0, done.stderr
    assert len(server.bodies) % 3 == 0  # the conversation again, each time with tokens of its own
    firsts = [body["prompt"][0] for body in server.bodies if len(body["prompt"]) == 64]
    assert len(set(firsts)) == len(firsts) >= 2


def test_traffic_by_name_is_sent_in_a_closed_loop_or_at_a_rate(serve, behaviour):
    server = serve(behaviour(first_s=0.05))
    small = ("--length-scale", "0.01", "--max-output-tokens", "2", "--warmup", "0", "--url", server.url, "--model", "m")
    done = CliRunner().invoke(app, ["--traffic", "batch", "--requests", "5", "--concurrency", "2", *small])
    assert done.exit_code == 0, done.stderr
    assert len(server.bodies) == 5
    assert len({tuple(body["prompt"][:4]) for body in server.bodies}) == 1  # a job's instructions
    assert server.most_running == 2
    server.bodies.clear()
    done = CliRunner().invoke(app, ["--traffic", "azure-conv", "--rate", "100", "--duration", "0.1", *small])
    assert done.exit_code == 0, done.stderr
    assert 2 <= len(server.bodies) <= 30


def test_failed_requests_give_exit_code_1_and_their_kind(serve, behaviour):
    done = CliRunner().invoke(
        app, ["--url", serve(behaviour(usage=False)).url, "--model", "m", "--requests", "3", "--warmup", "0"]
    )
    assert done.exit_code == 1
    assert "no_usage 3" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--duration", "3"), "give --rate too"),
        (("--trace", "/nowhere/trace"), "cannot read the trace"),
        (("--trace", "/nowhere/trace", "--rate", "2"), "cannot read the trace"),
        (("--trace", "/nowhere/trace", "--requests", "2"), "give --max-requests"),
        (("--trace", "x", "--traffic", "batch"), "either --traffic or --trace"),
        (("--traffic", "chat"), "take one of azure-conv"),
        (("--traffic", "batch", "--duration", "5"), "give --rate too"),
        (("--rate", "1", "--arrivals", "weekly"), "is no pattern"),
        (("--output-tokens", "0"), "number of tokens"),
    ],
)
def test_wrong_options_give_exit_code_2_and_say_what_to_do(arguments, says):
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.replace("│", " ").split())


def test_a_server_that_is_away_gives_exit_code_1_and_no_traceback():
    done = CliRunner().invoke(app, ["--url", "http://127.0.0.1:9"])
    assert done.exit_code == 1
    assert "is the server running?" in done.stderr
    assert isinstance(done.exception, SystemExit)
    assert CliRunner().invoke(app, ["--url", "127.0.0.1:8000", "--model", "m"]).exit_code == 1


def test_ctrl_c_prints_and_writes_what_is_there(serve, behaviour, tmp_path):
    server, out = serve(behaviour(first_s=0.1)), tmp_path / "out.json"
    arguments = ("--url", server.url, "--model", "m", "--requests", "2000", "--concurrency", "2", "--json", str(out))
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--output-tokens", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while len(server.bodies) < 8:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "unfinished (interrupted)" in stdout
    assert "Traceback" not in stderr
    summary = json.loads(out.read_text())["summary"]
    assert summary["interrupted"]
    assert summary["succeeded"] >= 4
    assert summary["unfinished"] >= 1
    assert summary["failed"] == 0


def test_the_load_generator_loads_no_model_library():
    check = (
        "import sys, kvarn.cli.bench; print([n for n in ('torch', 'transformers', 'tokenizers') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_plots_keep_ends_and_scale_points_to_their_axes():
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0, 0.37, about=4) == [0, 0.1, 0.2, 0.3]
    assert cumulative([3.0, 1.0]) == [(1.0, 50.0), (3.0, 100.0)]
    many = [(float(at), 0.0) for at in range(10_001)]
    assert len(thin(many)) <= 602
    assert thin(many)[-1] == many[-1]
    frame = Frame("a < b", "x", "y", x_high=10.0, y_high=4.0)
    drawn = line_plot(frame, [Series("one & two", [(0.0, 0.0), (10.0, 4.0)])])
    assert f'points="{frame.x(0):.1f},{frame.y(0):.1f} {frame.x(10):.1f},{frame.y(4):.1f}"' in drawn
    assert "one &amp; two" in drawn
    ElementTree.fromstring(re.search(r"<svg.*</svg>", drawn).group())
