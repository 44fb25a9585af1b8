"""The command `kvarn`. Each sub-command's code is imported when it runs, so that `kvarn --help` answers at once."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import kvarn
from kvarn.replica.spawn import SpawnedEngine, spawn_engine

EXIT_USAGE = 2
"""The command line, the configuration or the model it names cannot be used."""

app = typer.Typer(
    name="kvarn",
    help="Serve large language models on your own machines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_FORWARDED: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""A command that has its own parser: imported when it runs."""

ConfigPath = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; see docs/configuration.md.")]


def main() -> None:
    """Entry point of the `kvarn` script.

    `kvarn serve` starts an engine process before anything else is imported or read: the engine's own imports are most
    of the time to the first token, and they run beside the gateway's.
    """
    if not _will_serve(sys.argv[1:]):
        app()
        return
    # Until the server listens to signals itself, a signal shall still end the engine and remove its sockets.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    engine = spawn_engine()
    try:
        app(obj=engine)
    finally:
        engine.abandon()


def _will_serve(arguments: list[str]) -> bool:
    return arguments[:1] == ["serve"] and "--help" not in arguments


@app.command()
def serve(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(help="Checkpoint directory, hub id (owner/name) or packaged model. [default: kvarn-demo]"),
    ] = None,
    config: ConfigPath = None,
    named: Annotated[
        list[str] | None, typer.Option("--model", "-m", metavar="NAME=PATH", help="A model and its name; repeatable.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [default: 8000]")] = None,
    api_server_count: Annotated[
        int | None, typer.Option(help="Gateway processes that serve the port. [default: 1]")
    ] = None,
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"] | None, typer.Option(help="Type of the weights. [default: auto]")
    ] = None,
    quantization: Annotated[
        Literal["int8", "int4"] | None, typer.Option(help="Quantise plain weights at load. [default: no]")
    ] = None,
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"] | None,
        typer.Option(help="Type of cached keys and values. [default: auto]"),
    ] = None,
    kernels: Annotated[
        Literal["auto", "cpu", "torch"] | None, typer.Option(help="What multiplies. [default: auto]")
    ] = None,
    packed_cache: Annotated[
        Path | None, typer.Option(help="Directory of packed weights, for quick starts. [default: none]")
    ] = None,
    max_context_length: Annotated[
        int | None, typer.Option(help="Prompt and answer together, in tokens. [default: the checkpoint's]")
    ] = None,
    kv_cache_gib: Annotated[
        float | None, typer.Option(help="Memory of the KV cache in GiB. [default: a tenth of the machine's]")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Option(help="What is logged. [default: info]")
    ] = None,
) -> None:
    """Serve models behind an OpenAI-compatible API. Without arguments: kvarn-demo at http://127.0.0.1:8000."""
    from kvarn.cli.serve import ServeOptions, run_server

    engine = context.obj if isinstance(context.obj, SpawnedEngine) else None
    options = ServeOptions(
        model=model,
        named=tuple(named or ()),
        config=config,
        host=host,
        port=port,
        api_server_count=api_server_count,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        kernels=kernels,
        packed_cache=packed_cache,
        max_context_length=max_context_length,
        kv_cache_gib=kv_cache_gib,
        log_level=log_level,
    )
    raise typer.Exit(run_server(options, engine))


@app.command(context_settings=_FORWARDED, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure an OpenAI-compatible server: TTFT, TPOT, throughput, goodput. See `kvarn bench --help`."""
    from kvarn.cli.bench import app as bench_app

    bench_app(args=context.args, prog_name="kvarn bench")


@app.command("config")
def show_config(config: ConfigPath = None) -> None:
    """Print the effective configuration: defaults, then the file, then KVARN_... variables."""
    import yaml

    from kvarn.config.load import ConfigError, load_config

    try:
        loaded = load_config(config)
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    typer.echo(yaml.safe_dump(loaded.model_dump(mode="json"), sort_keys=False), nl=False)


@app.command(context_settings=_FORWARDED, add_help_option=False)
def keys(context: typer.Context) -> None:
    """Make, list and revoke API keys. See `kvarn keys --help`."""
    from kvarn.cli.keys import app as keys_app

    keys_app(args=context.args, prog_name="kvarn keys")


@app.command(context_settings=_FORWARDED, add_help_option=False)
def prompts(context: typer.Context) -> None:
    """Show what projects allowed to be kept of their prompts. See `kvarn prompts --help`."""
    from kvarn.cli.prompts import app as prompts_app

    prompts_app(args=context.args, prog_name="kvarn prompts")


@app.command()
def meter(
    config: ConfigPath = None,
    from_ledger: Annotated[
        bool, typer.Option("--from-ledger", help="Count what the database's ledger has, without Kafka, and end.")
    ] = False,
    metrics_host: Annotated[str, typer.Option(help="Address of /metrics.")] = "127.0.0.1",
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of /metrics; 0 takes a free one.")] = 9465,
) -> None:
    """Build the billing tables from the usage events in Kafka, until told to stop. See docs/metering.md."""
    from kvarn.cli.administration import one_line_errors
    from kvarn.cli.meter import run_meter

    with one_line_errors():
        run_meter(config, from_ledger=from_ledger, metrics_host=metrics_host, metrics_port=metrics_port)


@app.command(context_settings=_FORWARDED, add_help_option=False)
def store(context: typer.Context) -> None:
    """Upgrade, check or downgrade the database's schema. See `kvarn store --help`."""
    from kvarn.cli.store import app as store_app

    store_app(args=context.args, prog_name="kvarn store")


@app.command(context_settings=_FORWARDED, add_help_option=False)
def tenants(context: typer.Context) -> None:
    """Organisations: make, list, show, set, delete. See `kvarn tenants --help`."""
    from kvarn.cli.tenants import app as tenants_app

    tenants_app(args=context.args, prog_name="kvarn tenants")


@app.command()
def usage(
    config: ConfigPath = None,
    by: Annotated[
        str, typer.Option(help="tenant, project, key, user, model, endpoint, outcome, tier, batch; hour or day.")
    ] = "tenant,model",
    since: Annotated[
        str | None,
        typer.Option(help="2026-11-01, 2026-11-01T10:00 (UTC), or 24h, 7d ago. [default: 30d; all time of a --batch]"),
    ] = None,
    until: Annotated[str | None, typer.Option(help="As --since; not included. [default: now]")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this organisation.")] = None,
    batch: Annotated[str | None, typer.Option(help="Only the lines of this batch.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show who used how much, and what it cost, from the database's ledger."""
    from rich.console import Console

    from kvarn.cli.usage import show_usage

    show_usage(config, by, since, until, tenant, batch, as_json, Console())


@app.command()
def version() -> None:
    """Print Kvarn's version."""
    typer.echo(f"kvarn {kvarn.__version__}")
