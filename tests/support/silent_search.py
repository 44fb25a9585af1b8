"""A search server that takes requests and answers none."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SearchServer(ThreadingHTTPServer):
    """`asked`: paths of the requests so far; `first` is set with the first."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.first, self.closing = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), Search)


class Search(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, SearchServer)
        self.server.asked.append(self.path)
        self.server.first.set()
        self.server.closing.wait(120)

    def log_message(self, *args: object) -> None:
        """Say nothing."""
