"""`http`: requests from the machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from exec_server import AsyncMachine, RemoteError

pytestmark = pytest.mark.anyio


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


async def test_a_request_has_status_headers_and_content(machine: AsyncMachine, site: str) -> None:
    answer = await machine.http.get(site + "/")
    assert (answer.status, answer.text, answer.header("X-Word"), answer.ok) == (200, "hello", "w", True)
    assert (await machine.http.get(site + "/missing")).status == 404
    posted = await machine.http.request("POST", site + "/", json={"a": 1}, timeout=30)
    assert posted.json() == {"got": '{"a": 1}', "type": "application/json"}


async def test_redirects_are_followed_unless_told_otherwise(machine: AsyncMachine, site: str) -> None:
    answer = await machine.http.get(site + "/moved")
    assert answer.status == 200 and len(answer.content) == 3_000_000 and answer.url == site + "/large"
    assert (await machine.http.request("GET", site + "/moved", follow_redirects=False)).status == 302


async def test_a_body_is_streamed(machine: AsyncMachine, site: str) -> None:
    async with machine.http.stream("GET", site + "/large") as body:
        assert body.response.status == 200
        total = 0
        async for part in body.chunks():
            total += len(part)
    assert total == 3_000_000
    async with machine.http.stream("GET", site + "/large") as body:
        pass
    assert (await machine.http.get(site + "/")).text == "hello"


async def test_a_host_that_is_not_there_is_an_error(machine: AsyncMachine) -> None:
    with pytest.raises(RemoteError) as raised:
        await machine.http.get("http://127.0.0.1:1/")
    assert raised.value.kind == "connect"
