"""A small identity provider on this machine: real HTTP, RSA keys of its own, and answers that a test spoils."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

from joserfc import jwk, jwt

CLIENT_ID, SECRET = "kvarn", "a secret/with:signs"


class OidcProvider:
    """Signs in whoever comes, as the person of `claims`."""

    def __init__(self) -> None:
        self.url = ""
        self.claims: dict[str, Any] = {"sub": "1", "email": "Ada@Acme.example", "email_verified": True, "name": "Ada"}
        self.changed: dict[str, Any] = {}
        """Claims of the next tokens that differ from what they should be; None leaves one out."""
        self.unsigned = False
        self.spoils_signature = False
        self.asked: list[str] = []
        self.issuer = ""
        self.stop: Callable[[], None] = lambda: None
        self._codes: dict[str, dict[str, str]] = {}
        self.rotate()

    def rotate(self) -> None:
        """Sign with a new key from now on, and publish it alone."""
        self._key = jwk.RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "use": "sig"})

    def answer(self, method: str, path: str, form: dict[str, str], headers: Any) -> tuple[int, dict[str, Any]]:
        self.asked.append(path)
        match path:
            case "/.well-known/openid-configuration":
                names = ("authorization", "token", "userinfo")
                endpoints = {f"{name}_endpoint": f"{self.url}/{name}" for name in names}
                return 200, {"issuer": self.issuer or self.url, "jwks_uri": f"{self.url}/keys", **endpoints}
            case "/keys":
                return 200, {"keys": [self._key.as_dict(private=False)]}
            case "/authorization":
                code = secrets.token_hex(8)
                self._codes[code] = form
                back = urlencode({"code": code, "state": form["state"], "iss": self.url})
                return 302, {"location": f"{form['redirect_uri']}?{back}"}
            case "/token" if method == "POST":
                return self._redeem(form, headers.get("authorization", ""))
            case "/userinfo":
                return 200, self.claims
        return 404, {}

    def _redeem(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        sent = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if (unquote(sent[0]), unquote(sent[2])) != (CLIENT_ID, SECRET):
            return 401, {"error": "invalid_client"}
        begun = self._codes.pop(form["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        if begun is None or (challenge.decode(), form["redirect_uri"]) != (
            begun["code_challenge"],
            begun["redirect_uri"],
        ):
            return 400, {"error": "invalid_grant"}
        return 200, {"id_token": self._id_token(begun["nonce"]), "access_token": "secret", "token_type": "Bearer"}

    def _id_token(self, nonce: str) -> str:
        now = int(time.time())
        times = {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": nonce}
        claims = {name: value for name, value in (times | self.claims | self.changed).items() if value is not None}
        if self.unsigned:
            parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
            return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."
        token = jwt.encode({"alg": "RS256", "kid": self._key.kid}, claims, self._key)
        return token[:-8] + "AAAAAAAA" if self.spoils_signature else token


@contextmanager
def oidc_provider() -> Iterator[OidcProvider]:
    """Serve a provider until the block ends."""
    provider = OidcProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self._answer(parts.path, dict(parse_qsl(parts.query)))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            self._answer(self.path, {name: values[0] for name, values in parse_qs(body).items()})

        def _answer(self, path: str, form: dict[str, str]) -> None:
            status, answer = provider.answer(self.command, path, form, self.headers)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            if status == 302:
                self.send_header("location", answer["location"])
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    provider.stop = stop
    try:
        yield provider
    finally:
        if thread.is_alive():
            stop()
