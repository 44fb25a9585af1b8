"""librdkafka's mock cluster in a process of its own, which a test may stop, let go on, and kill.

Never in the tests' own process: a cluster is destroyed with its client, in C, and there runs of all tests have crashed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import TracebackType

from confluent_kafka import Producer

_BROKERS = 3


class MockKafka:
    """A cluster that lives as long as the block it is used in."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.servers = self._process.stdout.readline().strip()

    def pause(self) -> None:
        """The brokers answer nobody any more."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """They go on where they were."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """They are gone, and their logs with them."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> MockKafka:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _serve() -> None:
    cluster = Producer({"test.mock.num.brokers": _BROKERS, "log_level": 2})
    brokers = cluster.list_topics(timeout=30).brokers.values()
    sys.stdout.write(",".join(f"{broker.host}:{broker.port}" for broker in brokers) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # without destroying the cluster


if __name__ == "__main__":
    _serve()
