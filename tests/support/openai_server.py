"""A small server with OpenAI's API, in a process of its own and independent of Kvarn's code, that fails when told to.

    python openai_server.py PORT

It answers with the words of the last message, one a chunk, or calls the first tool. `POST /control` sets what goes
wrong: a JSON object with

* `fault`: `status` (answers with `status`, `headers` and `message`), `hang` (before the first byte), `hang_after`
  (after `after` chunks), `cut` (closes the connection after `after` chunks), `cut_at_once`, `garbage` (chunks that are
  no JSON), `error_event` (an error in the stream after `after` chunks), `abort` (finish reason `abort`), `no_end` (all
  chunks and the finish reason, then silence);
* `times`: how many requests fail so; -1: all.
* `chunk_s`: pause before each chunk; `usage`: whether it reports usage; `stream`: whether it streams;
  `loading`: whether `/health` says 503; `models`: what it serves; `key`: the API key it wants.

`GET /control` tells what it was asked, and how many connections were closed in mid-answer.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DEFAULTS: dict[str, Any] = {
    "fault": None,
    "times": -1,
    "status": 500,
    "headers": {},
    "message": "made to fail",
    "after": 2,
    "chunk_s": 0.0,
    "usage": True,
    "stream": True,
    "loading": False,
    "models": ["foreign-model"],
    "key": None,
}
HANG_S = 60.0


class State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.settings = dict(DEFAULTS)
        self.requests: list[dict[str, Any]] = []
        self.broken_off = 0

    def take_fault(self) -> dict[str, Any]:
        """The settings for one request; counts a fault down."""
        with self.lock:
            settings = dict(self.settings)
            if settings["fault"] is not None:
                if settings["times"] == 0:
                    settings["fault"] = None
                elif settings["times"] > 0:
                    self.settings["times"] -= 1
            return settings


STATE = State()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        settings = STATE.settings
        if self.path == "/control":
            self.send_json({"requests": STATE.requests, "broken_off": STATE.broken_off})
        elif self.path == "/health":
            self.send_json({}, 503 if settings["loading"] else 200)
        elif self.path == "/version":
            self.send_json({"version": "9.9"})
        elif not self.allowed():
            self.send_json({"error": {"message": "Incorrect API key provided."}}, 401)
        elif self.path == "/v1/models":
            data = [{"id": name, "object": "model", "max_model_len": 4096} for name in settings["models"]]
            self.send_json({"object": "list", "data": data})
        else:
            self.send_json({"error": {"message": "no such path"}}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        if self.path == "/control":
            with STATE.lock:
                if body.pop("reset", False):
                    STATE.settings, STATE.requests, STATE.broken_off = dict(DEFAULTS), [], 0
                STATE.settings |= body
            self.send_json({})
            return
        settings = STATE.take_fault()
        if not self.allowed():
            self.send_json({"error": {"message": "Incorrect API key provided."}}, 401)
            return
        STATE.requests.append({"path": self.path, **body})
        fault = settings["fault"]
        if fault == "status":
            error = {"message": settings["message"], "type": "their_type", "param": "messages", "code": "their_code"}
            self.send_json({"error": error}, settings["status"], settings["headers"])
        elif fault == "hang":
            self.wait_for_end(HANG_S)
            self.close_connection = True
        elif fault == "cut_at_once":
            self.reset_connection()
        elif self.path == "/v1/embeddings":
            self.send_embeddings(body)
        elif self.path in ("/v1/chat/completions", "/v1/completions"):
            self.answer(body, settings)
        else:
            self.send_json({"error": {"message": "no such path"}}, 404)

    def allowed(self) -> bool:
        key = STATE.settings["key"]
        return key is None or self.headers.get("authorization") == f"Bearer {key}"

    def send_json(self, answer: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def send_embeddings(self, body: dict[str, Any]) -> None:
        inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
        vectors = [[float(len(each)), 1.0, 0.5, -2.0][: body.get("dimensions", 4)] for each in inputs]
        data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
        tokens = sum(len(each) for each in inputs)
        self.send_json({"data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})

    def answer(self, body: dict[str, Any], settings: dict[str, Any]) -> None:
        chat = self.path == "/v1/chat/completions"
        pieces = pieces_of(body, chat)
        n, prompt = body.get("n") or 1, json.dumps(body.get("messages") or body.get("prompt"))
        written = sum(1 for piece in pieces if piece) * n
        cached = {"cached_tokens": len(prompt.split()) // 2}
        usage = {
            "prompt_tokens": len(prompt.split()),
            "completion_tokens": written,
            "total_tokens": len(prompt.split()) + written,
            "prompt_tokens_details": cached,
        }
        finish = "tool_calls" if chat and body.get("tools") else "stop"
        if settings["fault"] == "abort":
            finish = "abort"
        if not (body.get("stream") and settings["stream"]):
            self.send_whole(pieces, finish, n, usage if settings["usage"] else None, chat)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            self.stream(body, settings, pieces, finish, n, usage, chat)
        except OSError:
            STATE.broken_off += 1
            self.close_connection = True

    def stream(
        self,
        body: dict[str, Any],
        settings: dict[str, Any],
        pieces: list[dict[str, Any]],
        finish: str,
        n: int,
        usage: dict[str, Any],
        chat: bool,
    ) -> None:
        fault, after = settings["fault"], settings["after"]
        if chat:
            for index in range(n):
                self.event({"choices": [{"index": index, "delta": {"role": "assistant", "content": ""}}]})
        for number, piece in enumerate(pieces):
            if number == after:
                if fault == "hang_after":
                    self.wait_for_end(HANG_S)
                    raise OSError
                if fault == "cut":
                    self.close_connection = True
                    return
                if fault == "error_event":
                    self.event({"error": {"message": "the engine died", "type": "InternalServerError", "code": 500}})
                    self.end_stream()
                    return
            if fault == "garbage":
                self.chunk(b"data: {not json\n\n")
            if self.wait_for_end(settings["chunk_s"]):
                raise OSError
            for index in range(n):
                self.event({"choices": [{"index": index, "finish_reason": None, **shown(piece, chat)}]})
        for index in range(n):
            end = {"delta": {}} if chat else {"text": ""}
            self.event({"choices": [{"index": index, "finish_reason": finish, **end}]})
        if fault == "no_end":
            self.wait_for_end(HANG_S)
            raise OSError
        if settings["usage"] and (body.get("stream_options") or {}).get("include_usage"):
            self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.end_stream()

    def send_whole(self, pieces: list[dict[str, Any]], finish: str, n: int, usage: Any, chat: bool) -> None:
        text = "".join(piece.get("content", "") for piece in pieces)
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        reasoning = "".join(piece.get("reasoning_content", "") for piece in pieces)
        if reasoning:
            message["reasoning_content"] = reasoning
        calls = [call for piece in pieces for call in piece.get("tool_calls", ())]
        if calls:
            arguments = "".join(call["function"].get("arguments", "") for call in calls)
            function = {"name": calls[0]["function"]["name"], "arguments": arguments}
            message["tool_calls"] = [{"id": calls[0]["id"], "type": "function", "function": function}]
        own = {"message": message} if chat else {"text": text}
        choices = [{"index": index, "finish_reason": finish, **own} for index in range(n)]
        self.send_json({"choices": choices, **({"usage": usage} if usage else {})})

    def event(self, data: dict[str, Any]) -> None:
        self.chunk(b"data: " + json.dumps({"id": "x", "model": "foreign", **data}).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def wait_for_end(self, seconds: float) -> bool:
        """Wait; whether the client left meanwhile."""
        if not seconds:
            return False
        self.connection.settimeout(seconds)
        try:
            return self.connection.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True
        finally:
            self.connection.settimeout(None)

    def reset_connection(self) -> None:
        import socket

        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def pieces_of(body: dict[str, Any], chat: bool) -> list[dict[str, Any]]:
    """What the answer consists of, chunk by chunk: as deltas of a chat."""
    if not chat:
        prompt = body["prompt"]
        text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
        return [{"content": word + " "} for word in text.split()]
    if body.get("tools"):
        function = body["tools"][0]["function"]
        start = {"index": 0, "id": "call_theirs", "type": "function", "function": {"name": function["name"]}}
        start["function"]["arguments"] = ""
        parts = ['{"city": ', '"Uppsala"}']
        return [
            {"tool_calls": [start]},
            *({"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in parts),
        ]
    content = body["messages"][-1]["content"]
    text = content if isinstance(content, str) else " ".join(part["text"] for part in content)
    thoughts = [{"reasoning_content": word + " "} for word in ("let", "me", "see")] if "think" in text else []
    return thoughts + [{"content": word + " "} for word in text.split()]


def shown(piece: dict[str, Any], chat: bool) -> dict[str, Any]:
    return {"delta": piece} if chat else {"text": piece["content"]}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


if __name__ == "__main__":
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
    server.serve_forever(poll_interval=0.05)
    time.sleep(0)
