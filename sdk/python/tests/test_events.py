"""The order of events, without a server."""

from __future__ import annotations

from typing import Any

from exec_server._events import UNREAD_LIMIT, EventOrder
from exec_server._protocol import encode, from_uri, to_uri


def text_of(order: EventOrder) -> str:
    parts: list[bytes] = []
    while (output := order.take()) is not None:
        parts.append(output.data)
    state = "" if order.exit is None else f" exit {order.exit.returncode}"
    return b"".join(parts).decode() + state + (" closed" if order.is_closed else "") + (" lost" if order.lost else "")


def answer(chunks: dict[int, str], next_seq: int, **state: Any) -> dict[str, Any]:
    listed = [{"seq": seq, "stream": "stdout", "chunk": encode(text.encode())} for seq, text in chunks.items()]
    return {"chunks": listed, "nextSeq": next_seq, "exited": False, "exitCode": None, "closed": False, **state}


def test_shuffled_and_doubled_events_are_delivered_once_in_order() -> None:
    order = EventOrder()
    order.closed(4)
    order.output(2, "stdout", b"b")
    order.output(2, "stdout", b"b")
    assert text_of(order) == ""
    order.exited({"seq": 3, "exitCode": 5})
    order.output(1, "stdout", b"a")
    order.output(1, "stdout", b"a")
    assert text_of(order) == "ab exit 5 closed"


def test_a_read_fills_the_gap_in_front_of_pushed_events() -> None:
    order = EventOrder()
    order.output(1, "stdout", b"a")
    order.output(4, "stdout", b"d")
    order.read(answer({2: "b", 3: "c"}, 4))
    assert text_of(order) == "abcd"


def test_the_exit_is_rebuilt_from_its_missing_number_on_the_page_that_has_it() -> None:
    order = EventOrder()
    exited = {"exited": True, "exitCode": 7, "closed": True}
    order.read(answer({1: "a"}, 2, **exited))
    assert text_of(order) == "a"
    order.read(answer({3: "late"}, 4, **exited))
    assert text_of(order) == "late exit 7"
    order.read(answer({}, 5, **exited))
    assert text_of(order) == " exit 7 closed"


def test_evicted_output_is_told_and_the_exit_is_still_known() -> None:
    order = EventOrder()
    exited = {"exited": True, "exitCode": 0, "closed": True, "firstSeq": 5, "evictedBytes": 9}
    order.read(answer({5: "e"}, 6, **exited))
    assert order.lost is not None and "9 bytes" in order.lost
    order.read(answer({}, 7, **exited))
    assert order.is_closed and order.exit is not None


def test_collected_output_is_whole_and_its_views_are_copied() -> None:
    order = EventOrder(is_collecting=True)
    buffer = bytearray(b"a")
    order.output(1, "stdout", memoryview(buffer))
    order.output(3, "stdout", memoryview(buffer))
    buffer[:] = b"b"
    order.output(2, "stderr", memoryview(buffer))
    order.read(answer({4: "c"}, 5))
    assert order.collected() == (b"aac", b"b") and order.unread_bytes == 0


def test_unread_output_is_bounded() -> None:
    order = EventOrder()
    block = b"x" * (UNREAD_LIMIT // 4)
    for seq in range(1, 6):
        order.output(seq, "stdout", block)
    assert order.lost is not None and order.unread_bytes == UNREAD_LIMIT


def test_paths_go_round_as_uris() -> None:
    for path in ["/", "/a b", "/%41?#", "/ö", "/bad-\udcff", "/C:/x", "/a\\b"]:
        assert from_uri(to_uri(path)) == path
    assert to_uri("/C:/h2x") == "file:///%00/bad/path/L0M6L2gyeA"
