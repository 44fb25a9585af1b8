"""`kvarn bench`: drive an OpenAI-compatible server and report what its users felt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

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
from kvarn.bench.trace import Scaling, TraceError, TraceFormat, read_trace, scale_trace
from kvarn.bench.workload import (
    BenchRequest,
    Lengths,
    Vocabulary,
    poisson_arrivals,
    synthetic_requests,
    warm_up_requests,
)
from kvarn.cli.values import api_key as read_api_key

EXIT_FAILED = 1
"""Some request failed, or the server could not be reached."""
EXIT_USAGE = 2
"""The options contradict each other, or the trace cannot be read."""
EXIT_INTERRUPTED = 130
"""Ctrl-C: what was known is printed and written."""

DEFAULT_REQUESTS = 100

app = typer.Typer(add_completion=False)


def _length(text: str) -> Lengths:
    try:
        return Lengths.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _vocabulary(text: str) -> Vocabulary:
    try:
        return Vocabulary.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Option = typer.Option
Url = Annotated[str, Option(help="Root of the server.")]
Model = Annotated[str | None, Option(help="Model to ask.", show_default="the first the server lists")]
ApiKey = Annotated[
    str | None,
    Option(envvar="KVARN_API_KEY", parser=read_api_key, metavar="KEY", help="Sent as bearer token, written nowhere."),
]
EndpointOption = Annotated[Endpoint, Option(help="completions: token-id prompts, exact lengths. chat: text prompts.")]
Concurrency = Annotated[int, Option(min=1, help="Closed loop: requests kept in flight.")]
Requests = Annotated[int | None, Option(min=1, help="Requests to send.", show_default="closed loop: 100")]
Rate = Annotated[float | None, Option(min=1e-6, help="Open loop: Poisson arrivals per second.")]
Duration = Annotated[
    float | None, Option(min=0, help="Open loop: seconds of arrivals.", show_default="60 without --requests")
]
Trace = Annotated[Path | None, Option(help="Replay this trace file in place of made-up requests.")]
TraceFormatOption = Annotated[TraceFormat, Option(help="Azure CSV, Mooncake JSON lines, or told by the first line.")]
TimeScale = Annotated[float, Option(min=0, help="Trace: multiply arrival times; 0.5 is twice as fast.")]
LengthScale = Annotated[float, Option(min=1e-6, help="Trace: multiply lengths; what prompts share is kept.")]
MaxRequests = Annotated[int | None, Option(min=1, help="Trace: only the first so many.")]
MaxPrompt = Annotated[int | None, Option(min=1, help="Trace: cut longer prompts at their end.")]
MaxOutput = Annotated[int | None, Option(min=1, help="Trace: cut longer answers.")]
PromptTokens = Annotated[Lengths, Option(parser=_length, metavar="N|LO:HI", help="Tokens of a prompt's own.")]
SharedPrefix = Annotated[int, Option(min=0, help="Tokens that all prompts begin with, before their own.")]
OutputTokens = Annotated[Lengths, Option(parser=_length, metavar="N|LO:HI", help="Tokens to generate.")]
IgnoreEos = Annotated[bool, Option(help="Ask for exactly the output length (ignore_eos, min_tokens).")]
TokenIds = Annotated[Vocabulary, Option(parser=_vocabulary, metavar="LO:HI", help="Token ids prompts are made of.")]
Seed = Annotated[int, Option(min=0, help="Seed of prompts, lengths and arrivals.")]
WarmUp = Annotated[int, Option(min=0, help="Requests sent before the clock starts.")]
Timeout = Annotated[float, Option(min=0.001, help="Seconds after which a request is given up.")]
SloTtft = Annotated[float | None, Option(min=0, help="Goodput: TTFT at most, ms.")]
SloTpot = Annotated[float | None, Option(min=0, help="Goodput: TPOT at most, ms.")]
JsonPath = Annotated[Path | None, Option("--json", help="Write environment, parameters, summary and requests.")]
HtmlPath = Annotated[Path | None, Option("--html", help="Write a report with plots: one file, opens offline.")]


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    url: Url = "http://127.0.0.1:8000",
    model: Model = None,
    api_key: ApiKey = None,
    endpoint: EndpointOption = Endpoint.COMPLETIONS,
    concurrency: Concurrency = 8,
    requests: Requests = None,
    rate: Rate = None,
    duration: Duration = None,
    trace: Trace = None,
    trace_format: TraceFormatOption = "auto",
    time_scale: TimeScale = 1.0,
    length_scale: LengthScale = 1.0,
    max_requests: MaxRequests = None,
    max_prompt_tokens: MaxPrompt = None,
    max_output_tokens: MaxOutput = None,
    prompt_tokens: PromptTokens = "128",  # type: ignore[assignment]  # typer parses the default too
    shared_prefix_tokens: SharedPrefix = 0,
    output_tokens: OutputTokens = "64",  # type: ignore[assignment]
    ignore_eos: IgnoreEos = True,
    token_ids: TokenIds = "300:4000",  # type: ignore[assignment]
    seed: Seed = 0,
    warmup: WarmUp = 1,
    timeout: Timeout = 600.0,
    slo_ttft_ms: SloTtft = None,
    slo_tpot_ms: SloTpot = None,
    json_path: JsonPath = None,
    html_path: HtmlPath = None,
) -> None:
    """Measure an OpenAI-compatible server: TTFT, TPOT, throughput, goodput (`roofline`: this machine's engine).

    Closed loop by --concurrency, open loop by --rate, or a recorded --trace. Exit code: 0 all requests succeeded,
    1 some failed or the server is away, 2 wrong options, 130 interrupted.
    """
    parameters = {name: value for name, value in locals().items() if name not in ("api_key", "context")}
    if context.invoked_subcommand is not None:
        return
    slo = Slo(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms)
    if trace is not None:
        if rate is not None or duration is not None or requests is not None:
            _stop("--trace brings its own arrivals: leave --rate, --duration and --requests out", EXIT_USAGE)
        scaling = Scaling(
            time=time_scale,
            length=length_scale,
            max_prompt_tokens=max_prompt_tokens,
            max_output_tokens=max_output_tokens,
        )
        to_send = _recorded(trace, trace_format, max_requests, scaling)
    else:
        to_send = _synthetic(requests, rate, duration, prompt_tokens, output_tokens, shared_prefix_tokens, seed)
    target = Target(
        url=url,
        model=model or "",
        endpoint=endpoint,
        api_key=api_key,
        ignore_eos=ignore_eos,
        vocabulary=token_ids,
        seed=seed,
        timeout_s=timeout,
    )
    closed = trace is None and rate is None
    _run(target, to_send, concurrency if closed else None, warmup, slo, parameters)


@app.command()
def roofline(
    model: Annotated[str, typer.Argument(help="Checkpoint directory, hub id or packaged model.")] = "kvarn-demo",
    batch: Annotated[list[int] | None, Option(min=1, help="Decode batch; repeatable.", show_default="1, 8, 32")] = None,
    context: Annotated[int, Option(min=8, help="Tokens each sequence has in the middle of its run.")] = 192,
    prompt: Annotated[list[int] | None, Option(min=2, help="Prompt length; repeatable.", show_default="512")] = None,
    steps: Annotated[int, Option(min=1, help="Steps measured for each batch.")] = 16,
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32", "float16", "half"], Option(help="Type of plain weights.")
    ] = "auto",
    quantization: Annotated[Literal["int8", "int4"] | None, Option(help="Quantise plain weights.")] = None,
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"], Option(help="Type of cached keys and values.")
    ] = "auto",
    kernels: Annotated[Literal["auto", "cpu", "torch"], Option(help="Backend.")] = "auto",
    threads: Annotated[int | None, Option(min=1, help="Kernel threads.", show_default="as `kvarn serve`")] = None,
    json_path: JsonPath = None,
) -> None:
    """Measure the machine's ceilings and, for each kind of step, the floor they allow and the time it takes."""
    from kvarn.cli.roofline import RooflineError, RooflineOptions, run_roofline  # brings torch
    from kvarn.config.schema import ModelConfig
    from kvarn.kernels.errors import KernelError
    from kvarn.models.errors import ModelError
    from kvarn.text.errors import CheckpointError

    config = ModelConfig(
        name=model,
        path=model,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        kernels=kernels,
        threads=threads,
    )
    options = RooflineOptions(batch or [1, 8, 32], context, prompt or [512], steps, json_path)
    try:
        run_roofline(config, options, Console())
    except (RooflineError, CheckpointError, ModelError, KernelError) as error:
        _stop(str(error), EXIT_USAGE)


def _recorded(path: Path, form: TraceFormat, max_requests: int | None, scaling: Scaling) -> list[BenchRequest]:
    try:
        return scale_trace(read_trace(path, form, max_requests), scaling)
    except TraceError as error:
        _stop(str(error), EXIT_USAGE)


def _synthetic(
    requests: int | None,
    rate: float | None,
    duration: float | None,
    prompt: Lengths,
    output: Lengths,
    shared_prefix: int,
    seed: int,
) -> list[BenchRequest]:
    arrivals = None
    if duration is not None and rate is None:
        _stop("--duration belongs to an open loop: give --rate too", EXIT_USAGE)
    if rate is not None:
        duration = 60.0 if duration is None and requests is None else duration
        arrivals = poisson_arrivals(rate, seed=seed, duration_s=duration, count=requests)
        if not arrivals:
            _stop("no request arrives in so short a --duration at this --rate", EXIT_USAGE)
    count = (requests or DEFAULT_REQUESTS) if arrivals is None else len(arrivals)
    return synthetic_requests(
        count=count, prompt=prompt, output=output, shared_prefix=shared_prefix, seed=seed, arrivals=arrivals
    )


def _run(
    target: Target,
    to_send: list[BenchRequest],
    concurrency: int | None,
    warm_up: int,
    slo: Slo,
    parameters: dict[str, Any],
) -> None:
    """Run, print, write, and exit with the code the outcome deserves."""
    parameters = {name: msgspec.to_builtins(value, enc_hook=str) for name, value in parameters.items()}
    json_path, html_path = parameters.pop("json_path"), parameters.pop("html_path")
    try:
        if not target.model:
            target = msgspec.structs.replace(target, model=first_model(target))
        job = Job(target=target, requests=to_send, concurrency=concurrency, warm_up=warm_up_requests(to_send, warm_up))
        outcome = run_job(job, Console(stderr=True))
    except BenchError as error:
        _stop(str(error), EXIT_FAILED)
    summary = summarise(outcome, slo)
    title = f"kvarn bench: {target.model} at {target.url}"
    print_summary(Console(), summary, title)
    parameters |= {"model": target.model}
    try:
        if json_path:
            write_json(Path(json_path), outcome, summary, parameters)
        if html_path:
            Path(html_path).write_text(html_report(outcome, summary, parameters, title), encoding="utf-8")
    except OSError as error:
        _stop(f"cannot write the results: {error}", EXIT_FAILED)
    if outcome.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if summary.failed:
        raise typer.Exit(EXIT_FAILED)


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(f"kvarn bench: {message}", err=True)
    raise typer.Exit(code)
