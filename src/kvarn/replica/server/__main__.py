"""The engine process: `python -m kvarn.replica.server [MODULE]`, started by `kvarn serve` and never by hand.

It imports MODULE (which brings torch: most of the start) while its parent is still reading its configuration, then
reads from standard input what it is to become. It ends with its parent.
"""

from __future__ import annotations

import gc
import importlib
import signal
import sys
from types import ModuleType

from kvarn.clock import SYSTEM_CLOCK
from kvarn.replica.server.parent import exit_with_parent


def main(arguments: list[str]) -> int:
    began = SYSTEM_CLOCK.now()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
    # Imports allocate a few hundred thousand objects and free almost none: collecting while they run is a fifth of
    # their time spent for nothing. `run_engine` freezes them.
    gc.disable()
    # Operators without data, for tracing and compiling: a third of torch's import, which serving never uses.
    sys.modules["torch._meta_registrations"] = ModuleType("torch._meta_registrations")
    for module in arguments:
        importlib.import_module(module)
    from kvarn.replica.server.run import run_engine

    return run_engine(began)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
