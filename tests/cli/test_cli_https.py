"""HTTPS with a certificate of its own."""

from __future__ import annotations

import os
import signal
import ssl
from pathlib import Path

import httpx
import pytest

from certificates import write_certificate
from deployed_server import wait_for

JSON = {"content-type": "application/json"}


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return write_certificate(tmp_path)


def test_the_server_speaks_https_and_nothing_else(serve, kvarn, certificate):
    file, key = certificate
    small = ("--max-model-len", "512", "--kv-cache-memory-bytes", "64M")
    served = serve("kvarn-demo", "--ssl-certfile", str(file), "--ssl-keyfile", str(key), *small)
    assert served.url.startswith("https://")
    trusting = ssl.create_default_context(cafile=str(file))
    body = {"model": "kvarn-demo", "prompt": "What is", "max_tokens": 40, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, verify=trusting, timeout=60) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    too_long = httpx.post(f"{served.url}/v1/completions", content=b"x" * 9_000_000, headers=JSON, verify=trusting)
    assert too_long.status_code == 413
    many = {f"x-{number}": "1" for number in range(200)}
    assert httpx.get(f"{served.url}/v1/models", headers=many, verify=trusting).status_code == 431
    with pytest.raises(httpx.ConnectError, match="certificate"):
        httpx.get(f"{served.url}/health")
    with pytest.raises(httpx.HTTPError):
        httpx.get(served.url.replace("https", "http") + "/health")
    listed = kvarn("models", "--url", served.url, SSL_CERT_FILE=str(file))
    assert listed.returncode == 0 and "kvarn-demo" in listed.stdout
    assert served.stop() == 0
    assert "level=error" not in "".join(served.log)


@pytest.mark.thorough
def test_a_gateway_process_that_cannot_start_says_why_in_one_line(serve, certificate):
    file, key = certificate
    small = ("--max-model-len", "512", "--kv-cache-memory-bytes", "64M")
    files = ("--ssl-certfile", str(file), "--ssl-keyfile", str(key))
    served = serve("kvarn-demo", "--api-server-count", "2", *files, *small)
    file.write_text("nothing")
    (worker,) = served.children("kvarn.api_servers.worker")
    os.kill(worker, signal.SIGKILL)
    reason = "a gateway process cannot serve: the certificate cannot be used"
    wait_for(lambda: any(reason in line for line in list(served.log)))
    assert served.stop() == 0
    assert not any("Traceback" in line for line in served.log)
