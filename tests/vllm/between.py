"""Stands before a prefill engine and lets something happen to it before its answer goes on.

Rule: a thread of its own serves it; the answer itself is the engine's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from tests.vllm.asking import ANSWER_TIMEOUT_S


@contextmanager
def between_the_legs(engine_url: str, happens: Callable[[], None]) -> Iterator[str]:
    """`host:port` of the stand-in on 127.0.0.1, for as long as the block lasts."""

    class StandIn(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Ask the engine, let it happen, answer."""
            content = self.rfile.read(int(self.headers["content-length"]))
            kind = {"content-type": self.headers["content-type"]}
            answer = httpx.post(
                engine_url + self.path, content=content, headers=kind, timeout=ANSWER_TIMEOUT_S
            )
            happens()
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    thread = threading.Thread(target=server.serve_forever, name="stand-in")
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
