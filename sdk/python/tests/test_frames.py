"""Frames of a websocket, received in pieces of every size."""

from __future__ import annotations

import random

import pytest
from websockets.frames import Frame, Opcode

from exec_server import LinkError
from exec_server._frames import BINARY, CLOSE, PING, TEXT, FrameReader

LIMIT = 1_000_000


def frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    """A frame as a server sends it."""
    return Frame(opcode, data, fin).serialize(mask=False)


def read(reader: FrameReader, data: bytes | memoryview) -> list[tuple[int, bytes]]:
    return [(message.opcode, bytes(message.data)) for message in reader.feed(data)]


def test_messages_are_put_together_from_pieces_of_any_size() -> None:
    source = random.Random(3)
    stream, expected = b"", list[tuple[int, bytes]]()
    for size in [0, 1, 125, 126, 127, 65535, 65536, 200_000, 3]:
        data = source.randbytes(size)
        stream += frame(Opcode.BINARY, data)
        expected.append((BINARY, data))
        # A ping may come between the fragments of a message.
        half = size // 2
        stream += frame(Opcode.TEXT, data[:half], fin=False) + frame(Opcode.PING, b"p")
        stream += frame(Opcode.CONT, b"", fin=False) + frame(Opcode.CONT, data[half:])
        expected += [(PING, b"p"), (TEXT, data)]
    stream += frame(Opcode.CLOSE, b"\x03\xe8bye")
    expected.append((CLOSE, b"\x03\xe8bye"))
    assert read(FrameReader(LIMIT), stream) == expected
    # Bytes come in a buffer that is used again for the next ones.
    buffer = bytearray(100_000)
    for largest in [1, 2, 3, 11, 1000, 70_000]:
        reader, at, found = FrameReader(LIMIT), 0, list[tuple[int, bytes]]()
        while at < len(stream):
            # One byte at a time would take long, and only the headers are of interest.
            size = source.randint(1, largest) if at % 5000 < 50 or largest > 100 else 4950
            piece = stream[at : at + size]
            buffer[: len(piece)] = piece
            found += read(reader, memoryview(buffer)[: len(piece)])
            at += size
        assert found == expected, largest


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1\x00",  # a reserved bit
        b"\x83\x00",  # an unknown kind
        b"\x81\x80\x00\x00\x00\x00",  # masked
        b"\x09\x00",  # a ping in fragments
        b"\x89\x7e\x00\x7e",  # a long ping
        b"\x80\x00",  # a continuation of nothing
        b"\x01\x00\x81\x00",  # a message inside another one
        b"\x82\x7f\x00\x00\x00\x00\x00\x0f\x42\x41",  # one byte more than the limit
        b"\x02\x7f\x00\x00\x00\x00\x00\x00\x00\x01x\x80\x7f\x00\x00\x00\x00\x00\x0f\x42\x40",  # the same in fragments
    ],
)
def test_what_is_against_the_protocol_breaks_the_link(data: bytes) -> None:
    with pytest.raises(LinkError):
        FrameReader(LIMIT).feed(data)
