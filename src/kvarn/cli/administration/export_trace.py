"""`kvarn export-trace`: the ledger's requests as a trace."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from kvarn.cli.administration.database import Database, database_command
from kvarn.cli.administration.usage import read_range
from kvarn.cli.application import application
from kvarn.cli.output import EXIT_FAILED, stop
from kvarn.store.ledger import UsageFilter
from kvarn.store.repositories.usage.recorded import recorded_requests
from kvarn.traffic.export import ExportFormat, written
from kvarn.traffic.recorded import Pseudonyms, recorded

app = application()


@database_command(app, "export-trace")
async def export_trace(
    database: Database,
    since: Annotated[str, typer.Option(help="Start: 2026-11-01, 2026-11-01T10:00 (UTC), or 24h, 7d ago.")] = "1h",
    until: Annotated[
        str | None, typer.Option(help="End (exclusive), in the forms of --since.", show_default="now")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Id of an organisation to select.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model to select.")] = None,
    form: Annotated[
        ExportFormat, typer.Option("--format", help="Format: lines of Mooncake's, or Weka's conversations.")
    ] = "mooncake",
    block: Annotated[int | None, typer.Option(min=1, help="Tokens of a block.", show_default="512; weka: 64")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write.", show_default="standard output")
    ] = None,
    salt: Annotated[
        str | None,
        typer.Option(
            help="Salt of the pseudonyms: the same one gives the same names in several exports.", show_default="random"
        ),
    ] = None,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests at most.")] = 1_000_000,
) -> None:
    """Export recorded requests as a trace: times, lengths, block ids and pseudonyms, no texts.

    `kvarn bench --trace` and `kvarn simulate` play it. See docs/reference/traffic.md.
    """
    start, end = read_range(since, until)
    where = UsageFilter(organization_id=tenant, models=None if model is None else (model,))
    requests = await recorded_requests(database.store, where, start=start, end=end, limit=max_requests + 1)
    if not requests:
        stop("no request was answered in this time", EXIT_FAILED)
    if len(requests) > max_requests:
        typer.echo(f"warning: there are more than {max_requests} requests: give a shorter time", err=True)
    pseudonyms = Pseudonyms(secrets.token_bytes(32) if salt is None else salt.encode())
    _write(written(recorded(requests[:max_requests], pseudonyms), form, block), output)


def _write(lines: Iterable[bytes], output: Path | None) -> None:
    with nullcontext(sys.stdout.buffer) if output is None else output.open("wb") as file:
        for line in lines:
            file.write(line + b"\n")
