"""Ingestion into vector stores: megabytes a second of each stage, without the model that embeds.

    python -m benchmarks.ingestion                a text, a Markdown, an HTML and a CSV file of 4 MiB each
    python -m benchmarks.ingestion --mib 1 --kinds md

Files are made of words as frequent as those of a language (Zipf), in sentences, paragraphs and sections. `parse` is
the sandboxed process, its start included; `chunk` counts tokens with kvarn-demo's tokenizer; `index` writes passages
and their words to SQLite. `all` are the three one after the other; `four` is the rate of four files at once. Behind
them stand this process's processor seconds for a megabyte, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np

from kvarn.config.schema import KvarnConfig
from kvarn.retrieval.build import make_retriever
from kvarn.retrieval.chunking import chunk
from kvarn.retrieval.parsing.parse import parse
from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.owner import ANYBODY
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from kvarn.text.checkpoint import local_checkpoint
from kvarn.text.tokenizer import Tokenizer

ResultT = TypeVar("ResultT")

OWNER, STORE = ANYBODY.owner, "vs_made"
KINDS = ("txt", "md", "html", "csv")
MAX_TOKENS, OVERLAP = 800, 400
_WORDS, _MIB = 20_000, 1 << 20


def sections(size: int) -> list[tuple[str, list[str]]]:
    """Titles and paragraphs of some bytes together."""
    chance = np.random.default_rng(0)
    frequencies = 1 / np.arange(1, _WORDS + 1)
    names = [f"w{number:x}" for number in range(_WORDS)]
    drawn = iter(chance.choice(_WORDS, size=size // 3, p=frequencies / frequencies.sum()).tolist())
    made, written = list[tuple[str, list[str]]](), 0
    while written < size:
        paragraphs = []
        for _ in range(int(chance.integers(2, 8))):
            sentences = [
                " ".join(names[next(drawn)] for _ in range(int(chance.integers(6, 24)))).capitalize() + "."
                for _ in range(int(chance.integers(2, 9)))
            ]
            paragraphs.append(" ".join(sentences))
            written += len(paragraphs[-1])
        made.append((f"Section {len(made)}", paragraphs))
    return made


def written_as(kind: str, made: Sequence[tuple[str, list[str]]]) -> str:
    if kind == "csv":
        rows = [f'{title},"{paragraph}"' for title, paragraphs in made for paragraph in paragraphs]
        return "\n".join(["title,text", *rows])
    if kind == "html":
        parts = [f"<h2>{title}</h2>" + "".join(f"<p>{each}</p>\n" for each in paragraphs) for title, paragraphs in made]
        return f"<html><body>{''.join(parts)}</body></html>"
    mark = "## " if kind == "md" else ""
    return "\n\n".join("\n\n".join([f"{mark}{title}", *paragraphs]) for title, paragraphs in made)


class Stages:
    """The stages of an ingestion, over a database of their own."""

    def __init__(self, folder: Path) -> None:
        config = KvarnConfig.model_validate({"data_dir": str(folder)})
        self.store = Store.open(config)
        self.index = make_retriever(config, self.store, _no_models, None)
        checkpoint = local_checkpoint("kvarn-demo")
        assert checkpoint is not None
        self.tokenizer = Tokenizer.load(checkpoint)
        self.seconds: dict[str, tuple[float, float]] = {}

    async def ingest(self, path: Path, file_id: str) -> int:
        """Ingest a file; the number of its passages. `seconds` are those of each stage: passed, and of the
        processors."""
        with path.open("rb") as file:
            document = await self._timed("parse", lambda: parse(file, path.name, ""))
        cut = asyncio.to_thread(chunk, document, self.tokenizer.count, MAX_TOKENS, OVERLAP)
        chunks = await self._timed("chunk", lambda: cut)
        await self.index.put_file(OWNER, STORE, file_id, filename=path.name, attributes={})
        put = self.index.replace_file(OWNER, STORE, file_id, chunks, None, embedder="", version="1")
        await self._timed("index", lambda: put)
        return len(chunks)

    async def _timed(self, name: str, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        start, used = time.perf_counter(), time.process_time()
        found = await work()
        self.seconds[name] = time.perf_counter() - start, time.process_time() - used
        return found


def _no_models() -> NoReturn:
    raise AssertionError("nothing is embedded")


async def measure(kinds: Sequence[str], mib: float, folder: Path) -> None:
    stages = Stages(folder)
    await migrate.upgrade(stages.store)
    await ensure_default_organization(stages.store)
    made = sections(int(mib * _MIB))
    names = ("passages", "parse", "chunk", "index", "all", "four", "MB/s", "chunk", "index", "four")
    print(f"{'kind':6}{'MiB':>6}{names[0]:>10}" + "".join(f"{name:>8}" for name in names[1:]), " processor s/MB")
    for kind in kinds:
        path = folder / f"made.{kind}"
        size = path.write_text(written_as(kind, made), encoding="utf-8") / 1e6
        passages = await stages.ingest(path, f"file-{kind}")
        took = dict(stages.seconds)
        start, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*[stages.ingest(path, f"file-{kind}-{number}") for number in range(4)])
        four = 4 * size / (time.perf_counter() - start)
        used = time.process_time() - used
        passed = [seconds for seconds, _ in took.values()]
        rates = [size / seconds for seconds in (*passed, sum(passed))] + [four]
        costs = [took["chunk"][1] / size, took["index"][1] / size, used / (4 * size)]
        print(f"{kind:6}{size * 1e6 / _MIB:6.1f}{passages:10}" + "".join(f"{rate:8.2f}" for rate in rates), end=" " * 8)
        print("".join(f"{cost:8.2f}" for cost in costs))
    stages.index.close()
    await stages.store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--mib", type=float, default=4.0, help="size of each file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(asked.kinds, asked.mib, Path(folder)))


if __name__ == "__main__":
    main()
