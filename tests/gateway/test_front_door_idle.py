"""Thousands of idle clients take little memory, and the others are answered as before."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from profiles import effort

IDLE = effort(2_000, 10_000)
MOST_BYTES_EACH = 40 * 1024

CLIENTS = """
import resource, socket, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
port, count = int(sys.argv[1]), int(sys.argv[2])
held = []
for number in range(count):
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    if number % 2:  # half of them have asked something once
        client.sendall(b"GET /health HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
        client.recv(4096)
    held.append(client)
print("connected", flush=True)
sys.stdin.read()
"""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_thousands_of_idle_connections_cost_little_memory_and_disturb_nobody(serve):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < IDLE + 2048:
        pytest.skip(f"the system allows {hard} open files, {IDLE + 2048} are needed: raise `ulimit -Hn`")
    with serve(idle_timeout_s=600) as server, server.client() as client:
        before = resident_bytes()
        clients = subprocess.Popen(
            [sys.executable, "-c", CLIENTS, str(server.port), str(IDLE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert clients.stdout is not None and clients.stdout.readline() == "connected\n"
            assert resident_bytes() - before < IDLE * MOST_BYTES_EACH
            for _ in range(20):
                body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
                assert client.post("/v1/chat/completions", json=body).status_code == 200
        finally:
            clients.communicate("")
        assert client.get("/health").status_code == 200
