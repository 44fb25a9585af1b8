"""HTTPS with a certificate of its own."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import ssl
import time
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

JSON = {"content-type": "application/json"}


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, secret


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


def test_a_gateway_process_that_cannot_start_says_why_in_one_line(serve, certificate):
    file, key = certificate
    small = ("--max-model-len", "512", "--kv-cache-memory-bytes", "64M")
    files = ("--ssl-certfile", str(file), "--ssl-keyfile", str(key))
    served = serve("kvarn-demo", "--api-server-count", "2", *files, *small)
    file.write_text("nothing")
    (worker,) = [pid for pid in served.engines() if b"processes.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(worker, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while not any("a gateway process cannot serve: the certificate cannot be used" in line for line in served.log):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert served.stop() == 0
    assert not any("Traceback" in line for line in served.log)
