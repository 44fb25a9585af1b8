"""The first program in a sandbox: takes its limits on itself, gives up root where it has it, and runs a module.

`python -I -S entry.py '{"user": ..., "limits": {...}, "path": [...], "module": "...", "arguments": [...]}'`. Started by
`kvarn.sandbox.bubblewrap` behind the seccomp filter; imports nothing of Kvarn's.
"""

import json
import os
import resource
import runpy
import select
import sys


def main(argument: str) -> None:
    """Run the module as `__main__`; it reads standard input and writes standard output."""
    if _is_alone():
        return
    asked = json.loads(argument)
    if asked["user"] is not None:  # before the limit of threads: root has none
        os.setgroups([])
        os.setresgid(asked["user"], asked["user"], asked["user"])
        os.setresuid(asked["user"], asked["user"], asked["user"])
    for name, (soft, hard) in asked["limits"].items():
        resource.setrlimit(getattr(resource, name), (soft, hard))
    sys.path += asked["path"]
    sys.argv = [asked["module"], *asked["arguments"]]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


def _is_alone() -> bool:
    """Whether the server is gone, so that nobody reads standard output: bubblewrap does not see its parent's end while
    it is still making the sandbox."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return bool(output.poll(0))


main(sys.argv[1])
