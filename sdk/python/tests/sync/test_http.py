# Generated from aio/test_http.py by tools/unasync.py; change that file.
"""`http`: requests from the machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from exec_server import Machine, RemoteError


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("location", "/large")
            self.end_headers()
            return
        body = b"x" * 3_000_000 if self.path == "/large" else b"hello"
        self.send_response(200 if self.path != "/missing" else 404)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-word", "w")
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = json.dumps({"got": body.decode(), "type": self.headers["content-type"]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_request_has_status_headers_and_content(machine: Machine, site: str) -> None:
    answer = machine.http.get(site + "/")
    assert (answer.status, answer.text, answer.header("X-Word"), answer.ok) == (200, "hello", "w", True)
    assert (machine.http.get(site + "/missing")).status == 404
    posted = machine.http.request("POST", site + "/", json={"a": 1}, timeout=30)
    assert posted.json() == {"got": '{"a": 1}', "type": "application/json"}


def test_redirects_are_followed_unless_told_otherwise(machine: Machine, site: str) -> None:
    answer = machine.http.get(site + "/moved")
    assert answer.status == 200 and len(answer.content) == 3_000_000 and answer.url == site + "/large"
    assert (machine.http.request("GET", site + "/moved", follow_redirects=False)).status == 302


def test_a_body_is_streamed(machine: Machine, site: str) -> None:
    with machine.http.stream("GET", site + "/large") as body:
        assert body.response.status == 200
        total = 0
        for part in body.chunks():
            total += len(part)
    assert total == 3_000_000
    with machine.http.stream("GET", site + "/large") as body:
        pass
    assert (machine.http.get(site + "/")).text == "hello"


def test_a_host_that_is_not_there_is_an_error(machine: Machine) -> None:
    with pytest.raises(RemoteError) as raised:
        machine.http.get("http://127.0.0.1:1/")
    assert raised.value.kind == "connect"
