"""The program in a container's sandbox: runs pieces of code, one after the other, in one namespace.

`guest.py MAX_LOG_CHARACTERS MAX_FILE_BYTES`. Messages in both directions are JSON behind its length in 8 bytes. A
request is `{"put": path, "size": n}` with n bytes behind it, `{"remove": path}` or `{"code": text}`; the reply to code
is `{"logs", "failed", "processor_s", "removed": [path], "files": [[path, size]]}` with the contents of files behind it:
those that are new or changed since the reply before. Imports nothing of Kvarn's, and little else.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import linecache
import os
import resource
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

FOLDER = Path("/mnt/data")
MAX_FILES = 200
CUT = "\n[output cut off here]"

Version = tuple[int, int]
"""Size of a file, and the time of its last change in nanoseconds."""


class Log(io.TextIOBase):
    """Keeps what code prints, up to a number of characters."""

    def __init__(self, most: int) -> None:
        self.parts: list[str] = []
        self.left = most

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.left > 0:
            self.parts.append(readable(text[: self.left]))
            self.left -= len(text)
            if self.left <= 0:
                self.parts.append(CUT)
        return len(text)


class Guest:
    """The namespace of a container's code, and the files that the server knows."""

    def __init__(self, max_log: int, max_bytes: int) -> None:
        self.max_log = max_log
        self.max_bytes = max_bytes
        self.namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
        self.known: dict[str, Version] = {}
        self.cells = 0

    def put(self, path: str, content: bytes) -> None:
        full = FOLDER / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content)
        self.known[path] = version(full)

    def remove(self, path: str) -> None:
        self.known.pop(path, None)
        (FOLDER / path).unlink(missing_ok=True)

    def run(self, code: str) -> tuple[dict[str, Any], list[bytes]]:
        """The reply to a piece of code, and the contents of files."""
        log, failed, before = Log(self.max_log), False, processor_s()
        with redirect_stdout(log), redirect_stderr(log):
            try:
                self.execute(code)
                self.save_figures()
            except BaseException as error:
                failed = not (isinstance(error, SystemExit) and not error.code)
                explain(error)
        files, contents, removed = self.changes(log)
        reply = {"logs": "".join(log.parts), "failed": failed, "processor_s": processor_s() - before}
        return reply | {"files": files, "removed": removed}, contents

    def execute(self, code: str) -> None:
        """Run code; the value of an expression at its end is shown, as in a notebook."""
        self.cells += 1
        name = f"<code {self.cells}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), self.namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), self.namespace)
            if value is not None:
                self.namespace["_"] = value
                sys.stdout.write(f"{value!r}\n")

    def save_figures(self) -> None:
        """Write figures that matplotlib has open: there is no screen to show them on."""
        plot = sys.modules.get("matplotlib.pyplot")
        if plot is None:
            return
        for number in plot.get_fignums():
            plot.figure(number).savefig(FOLDER / f"figure_{self.cells}_{number}.png")
        plot.close("all")

    def changes(self, log: Log) -> tuple[list[tuple[str, int]], list[bytes], list[str]]:
        """Files that are not what the server knows, with their contents, and those that are gone. What is too large, or
        one too many, comes with a later reply. A name that is not UTF-8 cannot be told: the log says so."""
        found: dict[str, Path] = {}
        for folder, folders, names in os.walk(FOLDER):
            folders[:] = sorted(each for each in folders if not each.startswith("."))
            for name in sorted(names):
                full = Path(folder) / name
                if name.startswith(".") or full.is_symlink() or not full.is_file():
                    continue
                path = str(full.relative_to(FOLDER))
                if readable(path) == path:
                    found[path] = full
                else:
                    log.write(f"{path} is not kept: its name is not UTF-8.\n")
        removed = [path for path in self.known if path not in found]
        for path in removed:
            del self.known[path]
        files: list[tuple[str, int]] = []
        contents: list[bytes] = []
        left = self.max_bytes
        for path, full in found.items():
            now = version(full)
            if self.known.get(path) == now or now[0] > left or len(files) >= MAX_FILES:
                continue
            content = full.read_bytes()
            files.append((path, len(content)))
            contents.append(content)
            left -= len(content)
            self.known[path] = now
        return files, contents, removed


def explain(error: BaseException) -> None:
    """Print a traceback without the lines of this program."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename == __file__:
        place = place.tb_next
    traceback.print_exception(type(error), error, place)


def readable(text: str) -> str:
    """The text with half characters (a lone surrogate, as in a name that is not UTF-8) written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def version(full: Path) -> Version:
    state = full.stat()
    return state.st_size, state.st_mtime_ns


def main(arguments: list[str]) -> None:
    """Answer requests until standard input ends. Code has neither this program's input nor its output."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open("/dev/null", os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(nowhere, each)
    os.environ["MPLBACKEND"] = "agg"
    os.chdir(FOLDER)
    guest = Guest(int(arguments[0]), int(arguments[1]))
    while size := requests.read(8):
        asked = json.loads(requests.read(int.from_bytes(size, "big")))
        if "put" in asked:
            guest.put(asked["put"], requests.read(asked["size"]))
        elif "remove" in asked:
            guest.remove(asked["remove"])
        else:
            reply, contents = guest.run(asked["code"])
            head = json.dumps(reply).encode()
            replies.write(len(head).to_bytes(8, "big") + head)
            replies.writelines(contents)
            replies.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
