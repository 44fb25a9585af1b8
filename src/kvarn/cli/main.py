"""The command `kvarn`. Each sub-command's code is imported when it runs, so that `kvarn --help` answers at once."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import kvarn
from kvarn.cli.options import ServeOptions, takes_serve_options
from kvarn.cli.values import api_key as read_api_key
from kvarn.fleet.process import EngineProcess

EXIT_USAGE = 2
"""The command line, the configuration or the model it names cannot be used."""

app = typer.Typer(
    name="kvarn",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_FORWARDED: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""A command that has its own parser: imported when it runs."""

Url = Annotated[str, typer.Option(help="Root of the server.")]
ModelName = Annotated[
    str | None, typer.Option("--model", "-m", help="Model to ask.", show_default="the first that writes and is ready")
]
ApiKey = Annotated[
    str | None, typer.Option(envvar="KVARN_API_KEY", parser=read_api_key, metavar="KEY", help="Sent as bearer token.")
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.", show_default="the server's")]
Temperature = Annotated[float | None, typer.Option(min=0, help="0: no chance.", show_default="the server's")]
DEFAULT_URL = "http://127.0.0.1:8000"

ConfigPath = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; see docs/configuration.md.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvarn {kvarn.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print Kvarn's version.")
    ] = False,
) -> None:
    """Serve large language models on your own machines."""


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
    engine = EngineProcess.spawn()
    try:
        app(obj=engine)
    finally:
        engine.close()


def _will_serve(arguments: list[str]) -> bool:
    return arguments[:1] == ["serve"] and "--help" not in arguments


@app.command()
@takes_serve_options
def serve(context: typer.Context, options: ServeOptions) -> None:
    """Serve models behind an OpenAI-compatible API. Without arguments: kvarn-demo at http://127.0.0.1:8000."""
    from kvarn.cli.serve import run_server

    engine = context.obj if isinstance(context.obj, EngineProcess) else None
    raise typer.Exit(run_server(options, engine))


@app.command(context_settings=_FORWARDED, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure an OpenAI-compatible server: TTFT, TPOT, throughput, goodput. See `kvarn bench --help`."""
    from kvarn.cli.bench import app as bench_app

    bench_app(args=context.args, prog_name="kvarn bench")


@app.command()
def chat(
    question: Annotated[
        str | None, typer.Argument(help="Answered once.", show_default="read from a pipe, or a chat at the terminal")
    ] = None,
    url: Url = DEFAULT_URL,
    model: ModelName = None,
    api_key: ApiKey = None,
    system: Annotated[str | None, typer.Option(help="System prompt.", show_default="none")] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
) -> None:
    """Talk with a model of a running server."""
    from kvarn.cli import client

    client.chat(client.Connection(url, api_key, model, max_tokens, temperature), question, system)


@app.command()
def complete(
    prompt: Annotated[str | None, typer.Argument(help="Text to continue.", show_default="read from a pipe")] = None,
    url: Url = DEFAULT_URL,
    model: ModelName = None,
    api_key: ApiKey = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
) -> None:
    """Let a model of a running server continue a text."""
    from kvarn.cli import client

    client.complete(client.Connection(url, api_key, model, max_tokens, temperature), prompt)


@app.command()
def models(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List the models of a running server, and whether they are ready."""
    from kvarn.cli import client

    client.show_models(client.Connection(url, api_key), as_json)


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
    shown = loaded.model_dump(mode="json")
    shown["auth"]["api_keys"] = ["[key]" for _ in loaded.auth.api_keys]
    for section, name in (("store", "url"), ("limits", "redis_url")):
        shown[section][name] = _without_password(shown[section][name])
    typer.echo(yaml.safe_dump(shown, sort_keys=False), nl=False)


def _without_password(url: str | None) -> str | None:
    """Also where what stands in a password should have been encoded."""
    if url is None:
        return None
    shown = re.sub(r"(://[^:@/]*):.*@", r"\1:[password]@", url)
    return re.sub(r"(password=)[^&]*", r"\1[password]", shown)


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
        typer.Option(
            help="2026-11-01, 2026-11-01T10:00 (UTC), or 24h, 7d ago.", show_default="30d; all time of a --batch"
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(help="As --since; not included.", show_default="now")] = None,
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
