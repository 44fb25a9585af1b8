"""What rendering a chat of eight messages costs: in the template's process, and with the same environment in this one.

    python -m benchmarks.chat_template --rounds 5

Both take turns; the medians of the rounds count. Microseconds of a rendering: wall time, and of that the processor time
of this process, which is the gateway's share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from statistics import median

from kvarn.text.chat_template import ChatTemplate
from kvarn.text.template_worker import TemplateEnvironment

DEMO = Path(__file__).parent.parent / "src" / "kvarn" / "assets" / "kvarn-demo"
MESSAGES = [{"role": ("user", "assistant")[turn % 2], "content": "What is the KV cache? " * 8} for turn in range(8)]


async def in_the_process(chat: ChatTemplate, renderings: int) -> tuple[float, float]:
    """Wall and processor time of one rendering, in microseconds."""
    wall, own = time.perf_counter(), time.process_time()
    for _ in range(renderings):
        await chat.render(chat.request(MESSAGES))
    return (time.perf_counter() - wall) / renderings * 1e6, (time.process_time() - own) / renderings * 1e6


def in_this_one(chat: ChatTemplate, renderings: int) -> float:
    """The same without the process: all of it is this one's."""
    template = TemplateEnvironment().from_string(chat.source)
    variables = json.loads(chat.request(MESSAGES).payload)["variables"]
    wall = time.perf_counter()
    for _ in range(renderings):
        template.render(variables)
    return (time.perf_counter() - wall) / renderings * 1e6


async def measure(rounds: int, renderings: int) -> None:
    chat = ChatTemplate.load(DEMO)
    started = time.perf_counter()
    await chat.start()
    print(f"start of the process: {(time.perf_counter() - started) * 1e3:.0f} ms")
    apart, here = [], []
    for _ in range(rounds):
        apart.append(await in_the_process(chat, renderings))
        here.append(in_this_one(chat, renderings))
    await chat.close()
    walls, owns = zip(*apart, strict=True)
    print(f"in a process of its own: {median(walls):.0f} µs, of which this process's {median(owns):.0f} µs")
    print(f"in this process:         {median(here):.0f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--renderings", type=int, default=1000)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.rounds, arguments.renderings))


if __name__ == "__main__":
    main()
