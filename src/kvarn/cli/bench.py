"""`kvarn bench`: drive an OpenAI-compatible server and report the latency its clients see."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
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
from kvarn.traffic.arrivals import ArrivalPattern, arrivals
from kvarn.traffic.conversation import Conversation, Traffic, turns_of
from kvarn.traffic.entries import TraceError
from kvarn.traffic.presets import PRESETS, traffic_of
from kvarn.traffic.replay import replay
from kvarn.traffic.scaling import Scaling, scaled
from kvarn.traffic.trace import TraceFormat, form_of
from kvarn.traffic.workload import BenchRequest, Lengths, Vocabulary, synthetic_requests, warm_up_requests

DEFAULT_REQUESTS = 100
DEFAULT_DURATION_S = 60.0
_PROMPT_TOKENS, _OUTPUT_TOKENS, _TOKEN_IDS = Lengths(128, 128), Lengths(64, 64), Vocabulary()
_POISSON = ArrivalPattern()

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
    rate: Annotated[float | None, Option(min=1e-6, help="Open loop: requests per second.")] = None
    duration: Annotated[
        float | None,
        Option(
            min=0, help="Open loop: seconds of arrivals; a trace is repeated.", show_default="60 without --requests"
        ),
    ] = None
    arrivals: Annotated[
        ArrivalPattern,
        Option(
            parser=_parser(ArrivalPattern.parse),
            metavar="PATTERN",
            help="Open loop: poisson, uniform, gamma:CV, markov:PEAK, diurnal:SWING, or several joined by +.",
        ),
    ] = _POISSON
    traffic: Annotated[str | None, Option(metavar="NAME", help=f"Send this traffic: {', '.join(PRESETS)}.")] = None
    trace: Annotated[Path | None, Option(help="Replay this trace: a file, or a folder of Weka files.")] = None
    trace_format: Annotated[TraceFormat, Option(help="Format of the trace; auto reads the first line.")] = "auto"
    time_scale: Annotated[float, Option(min=0, help="Trace: multiply arrival times; 0.5 is twice as fast.")] = 1.0
    rate_scale: Annotated[
        float, Option(min=1e-6, help="Trace: multiply the number of conversations; bursts are kept.")
    ] = 1.0
    length_scale: Annotated[
        float, Option(min=1e-6, help="Trace, traffic: multiply lengths; shared prefixes are kept.")
    ] = 1.0
    max_requests: Annotated[int | None, Option(min=1, help="Trace: requests at most.")] = None
    max_prompt_tokens: Annotated[int | None, Option(min=1, help="Trace, traffic: cut longer prompts at their end.")] = (
        None
    )
    max_output_tokens: Annotated[int | None, Option(min=1, help="Trace, traffic: cut longer answers.")] = None
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

    Closed loop by --concurrency, open loop by --rate; --traffic and --trace say what is sent. Exit code: 0 all
    requests succeeded, 1 some failed or the server is away, 2 wrong options, 130 interrupted.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        conversations = _conversations(options)
        requests = [_first_request(each) for each in conversations[:2]] if conversations else _synthetic(options)
    except (TraceError, ValueError) as error:
        stop(str(error), EXIT_USAGE)
    concurrency = None if _is_open_loop(options) else options.concurrency
    target, console = options.target, Console(stderr=True)
    try:
        if not target.model:
            target = msgspec.structs.replace(target, model=first_model(target))
        warm_up = warm_up_requests(requests, options.warmup)
        job = Job(
            target=target, requests=requests, conversations=conversations, concurrency=concurrency, warm_up=warm_up
        )
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


def _is_open_loop(options: BenchOptions) -> bool:
    """Whether there are times to send at. Weka's format has none."""
    has_times = options.trace is not None and form_of(options.trace, options.trace_format) != "weka"
    return options.rate is not None or has_times


def _conversations(options: BenchOptions) -> list[Conversation]:
    """Those of --traffic or --trace; none: requests are synthetic. Raises TraceError, ValueError."""
    if options.traffic is None and options.trace is None:
        return []
    if options.traffic is not None and options.trace is not None:
        stop("give either --traffic or --trace", EXIT_USAGE)
    if options.trace is not None and options.requests is not None:
        stop("--requests does not belong to a trace: give --max-requests", EXIT_USAGE)
    if options.duration is not None and not _is_open_loop(options):
        stop("--duration belongs to an open loop: give --rate too", EXIT_USAGE)
    found = _limited(_replayed(options, options.trace) if options.trace else _generated(options), options)
    if not found:
        stop("no conversation begins in so short a --duration at this rate", EXIT_USAGE)
    return found


def _replayed(options: BenchOptions, path: Path) -> Traffic:
    return replay(
        path,
        options.trace_format,
        scaling=_scaling(options),
        rps=options.rate,
        pattern=options.arrivals,
        duration_s=options.duration,
        seed=options.seed,
    )


def _generated(options: BenchOptions) -> Traffic:
    duration = options.duration
    if options.rate is not None and duration is None and options.requests is None and options.max_requests is None:
        duration = DEFAULT_DURATION_S
    made = traffic_of(
        options.traffic or "",
        rps=options.rate or 1.0,
        duration_s=math.inf if duration is None else duration,
        seed=options.seed,
        pattern=options.arrivals,
    )
    return scaled(made, _scaling(options), options.seed)


def _scaling(options: BenchOptions) -> Scaling:
    return Scaling(
        time=options.time_scale,
        rate=options.rate_scale,
        length=options.length_scale,
        max_prompt_tokens=options.max_prompt_tokens,
        max_output_tokens=options.max_output_tokens,
    )


def _limited(traffic: Traffic, options: BenchOptions) -> list[Conversation]:
    """Whole conversations up to the number of requests that is wanted, and one at least."""
    most = options.max_requests or options.requests
    if most is None and options.traffic is not None and options.rate is None:
        most = DEFAULT_REQUESTS
    found, number = list[Conversation](), 0
    for each in traffic:
        number += sum(1 for _ in turns_of(each))
        if found and most is not None and number > most:
            break
        found.append(each)
        if number == most:
            break
    return found


def _first_request(conversation: Conversation) -> BenchRequest:
    first = conversation.turns[0]
    return BenchRequest(index=0, segments=first.segments, output_tokens=first.output_tokens)


def _synthetic(options: BenchOptions) -> list[BenchRequest]:
    count, duration, times = options.requests, options.duration, None
    if options.rate is not None:
        duration = DEFAULT_DURATION_S if duration is None and count is None else duration
        moments = arrivals(options.arrivals, options.rate, options.seed, math.inf if duration is None else duration)
        times = list(islice(moments, count))
        if not times:
            stop("no request arrives in so short a --duration at this --rate", EXIT_USAGE)
    elif duration is not None:
        stop("--duration belongs to an open loop: give --rate too", EXIT_USAGE)
    return synthetic_requests(
        count=(count or DEFAULT_REQUESTS) if times is None else len(times),
        prompt=options.prompt_tokens,
        output=options.output_tokens,
        shared_prefix=options.shared_prefix_tokens,
        seed=options.seed,
        arrivals=times,
    )
