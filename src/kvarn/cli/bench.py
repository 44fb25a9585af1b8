"""`kvarn bench`: drive an OpenAI-compatible server and report the latency its clients see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console

from kvarn.bench.driver import Job
from kvarn.bench.export import write_json
from kvarn.bench.report import html_report
from kvarn.bench.session import BenchError, first_model, run_job
from kvarn.bench.summary import Slo, summarise
from kvarn.bench.table import print_summary
from kvarn.bench.target import Endpoint, Target
from kvarn.cli.application import application, expand_options
from kvarn.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, stop
from kvarn.cli.profile import profile
from kvarn.cli.roofline import roofline
from kvarn.cli.values import api_key as read_api_key
from kvarn.config.environment import API_KEY, SERVER_URL
from kvarn.traffic.trace import Scaling, TraceError, TraceFormat, read_trace, scale_trace
from kvarn.traffic.workload import (
    BenchRequest,
    Lengths,
    Vocabulary,
    poisson_arrivals,
    synthetic_requests,
    warm_up_requests,
)

DEFAULT_REQUESTS = 100
_PROMPT_TOKENS, _OUTPUT_TOKENS, _TOKEN_IDS = Lengths(128, 128), Lengths(64, 64), Vocabulary()

app = application()
Option = typer.Option
ValueT = TypeVar("ValueT")


def _parser(parse: Callable[[str], ValueT]) -> Callable[[str | ValueT], ValueT]:
    """For typer: it parses the default too, and shows a ValueError without its text."""

    def read(value: str | ValueT) -> ValueT:
        try:
            return parse(value) if isinstance(value, str) else value
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read


@dataclass(frozen=True, slots=True)
class BenchOptions:
    url: Annotated[str, Option(envvar=SERVER_URL, help="Root of the server.")] = "http://127.0.0.1:8000"
    model: Annotated[str | None, Option(help="Model.", show_default="the first the server lists")] = None
    api_key: Annotated[
        str | None,
        Option(
            envvar=API_KEY,
            parser=read_api_key,
            metavar="KEY",
            help="API key, sent as bearer token and written nowhere.",
        ),
    ] = None
    endpoint: Annotated[Endpoint, Option(help="completions: token-id prompts, exact lengths. chat: text prompts.")] = (
        Endpoint.COMPLETIONS
    )
    concurrency: Annotated[int, Option(min=1, help="Closed loop: requests kept in flight.")] = 8
    requests: Annotated[int | None, Option(min=1, help="Requests to send.", show_default="closed loop: 100")] = None
    rate: Annotated[float | None, Option(min=1e-6, help="Open loop: Poisson arrivals per second.")] = None
    duration: Annotated[
        float | None, Option(min=0, help="Open loop: seconds of arrivals.", show_default="60 without --requests")
    ] = None
    trace: Annotated[Path | None, Option(help="Replay this trace file in place of synthetic requests.")] = None
    trace_format: Annotated[
        TraceFormat, Option(help="Azure CSV or Mooncake JSON lines; auto reads the first line.")
    ] = "auto"
    time_scale: Annotated[float, Option(min=0, help="Trace: multiply arrival times; 0.5 is twice as fast.")] = 1.0
    length_scale: Annotated[float, Option(min=1e-6, help="Trace: multiply lengths; shared prefixes are kept.")] = 1.0
    max_requests: Annotated[int | None, Option(min=1, help="Trace: requests at most.")] = None
    max_prompt_tokens: Annotated[int | None, Option(min=1, help="Trace: cut longer prompts at their end.")] = None
    max_output_tokens: Annotated[int | None, Option(min=1, help="Trace: cut longer answers.")] = None
    prompt_tokens: Annotated[
        Lengths, Option(parser=_parser(Lengths.parse), metavar="N|LO:HI", help="Tokens of a prompt's own.")
    ] = _PROMPT_TOKENS
    shared_prefix_tokens: Annotated[
        int, Option(min=0, help="Tokens that all prompts begin with, before their own.")
    ] = 0
    output_tokens: Annotated[
        Lengths, Option(parser=_parser(Lengths.parse), metavar="N|LO:HI", help="Tokens to generate.")
    ] = _OUTPUT_TOKENS
    ignore_eos: Annotated[bool, Option(help="Request exactly the output length (ignore_eos, min_tokens).")] = True
    token_ids: Annotated[
        Vocabulary, Option(parser=_parser(Vocabulary.parse), metavar="LO:HI", help="Token ids prompts are made of.")
    ] = _TOKEN_IDS
    seed: Annotated[int, Option(min=0, help="Seed of prompts, lengths and arrivals.")] = 0
    warmup: Annotated[int, Option(min=0, help="Requests sent before the clock starts.")] = 1
    timeout: Annotated[float, Option(min=0.001, help="Seconds after which a request is given up.")] = 600.0
    slo_ttft_ms: Annotated[float | None, Option(min=0, help="Goodput: TTFT at most, ms.")] = None
    slo_tpot_ms: Annotated[float | None, Option(min=0, help="Goodput: TPOT at most, ms.")] = None
    json_path: Annotated[Path | None, Option("--json", help="Write environment, parameters, summary and requests.")] = (
        None
    )
    html_path: Annotated[Path | None, Option("--html", help="Write a report with plots: one file, opens offline.")] = (
        None
    )

    @property
    def target(self) -> Target:
        return Target(
            url=self.url,
            model=self.model or "",
            endpoint=self.endpoint,
            api_key=self.api_key,
            ignore_eos=self.ignore_eos,
            vocabulary=self.token_ids,
            seed=self.seed,
            timeout_s=self.timeout,
        )

    def parameters(self) -> dict[str, Any]:
        hidden = ("api_key", "json_path", "html_path")
        return {
            name: msgspec.to_builtins(getattr(self, name), enc_hook=str)
            for name in self.__slots__
            if name not in hidden
        }


@app.callback(invoke_without_command=True)
@expand_options
def bench(context: typer.Context, options: BenchOptions) -> None:
    """Measure an OpenAI-compatible server: TTFT, TPOT, throughput, goodput (`roofline`, `profile`: this machine's
    engine).

    Closed loop by --concurrency, open loop by --rate, or a recorded --trace. Exit code: 0 all requests succeeded,
    1 some failed or the server is away, 2 wrong options, 130 interrupted.
    """
    if context.invoked_subcommand is not None:
        return
    requests = _synthetic(options) if options.trace is None else _recorded(options, options.trace)
    closed_loop = options.trace is None and options.rate is None
    concurrency = options.concurrency if closed_loop else None
    target, console = options.target, Console(stderr=True)
    try:
        if not target.model:
            target = msgspec.structs.replace(target, model=first_model(target))
        warm_up = warm_up_requests(requests, options.warmup)
        job = Job(target=target, requests=requests, concurrency=concurrency, warm_up=warm_up)
        outcome = run_job(job, console)
    except BenchError as error:
        stop(str(error), EXIT_FAILED)
    summary = summarise(outcome, Slo(ttft_ms=options.slo_ttft_ms, tpot_ms=options.slo_tpot_ms))
    title = f"kvarn bench: {target.model} at {target.url}"
    print_summary(Console(), summary, title)
    parameters = options.parameters() | {"model": target.model}
    try:
        if options.json_path:
            write_json(options.json_path, outcome, summary, parameters)
        if options.html_path:
            options.html_path.write_text(html_report(outcome, summary, parameters, title), encoding="utf-8")
    except OSError as error:
        stop(f"cannot write the results: {error}", EXIT_FAILED)
    if outcome.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if summary.failed:
        raise typer.Exit(EXIT_FAILED)


app.command()(roofline)
app.command()(profile)


def _recorded(options: BenchOptions, path: Path) -> list[BenchRequest]:
    if options.rate is not None or options.duration is not None or options.requests is not None:
        stop("--trace brings its own arrivals: leave --rate, --duration and --requests out", EXIT_USAGE)
    scaling = Scaling(
        time=options.time_scale,
        length=options.length_scale,
        max_prompt_tokens=options.max_prompt_tokens,
        max_output_tokens=options.max_output_tokens,
    )
    try:
        return scale_trace(read_trace(path, options.trace_format, options.max_requests), scaling)
    except TraceError as error:
        stop(str(error), EXIT_USAGE)


def _synthetic(options: BenchOptions) -> list[BenchRequest]:
    count, duration, arrivals = options.requests, options.duration, None
    if options.rate is not None:
        duration = 60.0 if duration is None and count is None else duration
        arrivals = poisson_arrivals(options.rate, seed=options.seed, duration_s=duration, count=count)
        if not arrivals:
            stop("no request arrives in so short a --duration at this --rate", EXIT_USAGE)
    elif duration is not None:
        stop("--duration belongs to an open loop: give --rate too", EXIT_USAGE)
    return synthetic_requests(
        count=(count or DEFAULT_REQUESTS) if arrivals is None else len(arrivals),
        prompt=options.prompt_tokens,
        output=options.output_tokens,
        shared_prefix=options.shared_prefix_tokens,
        seed=options.seed,
        arrivals=arrivals,
    )
