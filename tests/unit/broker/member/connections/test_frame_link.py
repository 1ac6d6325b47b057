"""Frames of one connection: responses are complete however the bytes are split, and a response without a request ends
the connection."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tidelog.broker.member.connections.frame_link import (
    FIRST_BYTES,
    MAX_FRAME_BYTES,
    MAX_RESPONSE_BYTES,
    FrameLink,
)


class PiecesTransport(asyncio.Transport):
    """A transport that keeps written bytes, and delivers bytes to its link piece by piece, as a socket would."""

    def __init__(self, link: FrameLink) -> None:
        super().__init__()
        self.link = link
        self.written = b""
        self.is_closed = False
        link.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep the bytes."""
        self.written += data

    def abort(self) -> None:
        """Note the close."""
        self.is_closed = True

    def deliver(self, data: bytes, piece: Callable[[], int]) -> None:
        """Deliver bytes in pieces, each at most as long as ``piece`` returns."""
        while data:
            with self.link.get_buffer(-1) as buffer:
                count = min(len(buffer), piece(), len(data))
                buffer[:count] = data[:count]
            self.link.buffer_updated(count)
            data = data[count:]


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def begin(transport: PiecesTransport, request: bytes = b"asked") -> asyncio.Task[bytearray]:
    task = asyncio.create_task(transport.link.exchange(request))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("seed", range(20))
async def test_answers_come_whole_in_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    transport = PiecesTransport(FrameLink())
    max_chunk = rng.choice((1, 3, 5, 1000, 1 << 20))
    for size in (4, rng.randrange(4, 200), rng.randrange(4, 3000)):
        body = rng.randbytes(size)
        task = await begin(transport, body[:4])
        transport.deliver(framed(body), lambda: rng.randint(1, max_chunk))
        assert await task == body
        assert transport.written[-8:] == framed(body[:4])
    assert not transport.is_closed


@pytest.mark.parametrize("size", [FIRST_BYTES, FIRST_BYTES + 1, 5 * FIRST_BYTES + 7])
async def test_the_buffer_of_a_long_answer_grows_with_the_received_bytes(size: int) -> None:
    transport = PiecesTransport(FrameLink())
    body = random.Random(size).randbytes(size)
    task = await begin(transport)
    transport.deliver(framed(body)[: 4 + FIRST_BYTES], lambda: 1 << 18)
    if size > FIRST_BYTES:
        with transport.link.get_buffer(-1) as buffer:
            assert 0 < len(buffer) <= FIRST_BYTES
    transport.deliver(framed(body)[4 + FIRST_BYTES :], lambda: 1 << 18)
    assert await task == body


@pytest.mark.parametrize("size", [-1, 0, 3, MAX_RESPONSE_BYTES + 1, struct.unpack(">i", b"HTTP")[0]])
async def test_a_frame_of_an_impossible_size_is_an_error(size: int) -> None:
    transport = PiecesTransport(FrameLink())
    task = await begin(transport)
    transport.deliver(struct.pack(">i", size) + b"more", lambda: 5)
    with pytest.raises(ConnectionAbortedError, match=f"a frame of {size} bytes: this is not a Kafka node"):
        await task
    assert transport.is_closed


@pytest.mark.parametrize("size", [MAX_RESPONSE_BYTES + 1, MAX_FRAME_BYTES])
async def test_a_long_answer_is_expected_only_if_its_request_allows_it(size: int) -> None:
    transport = PiecesTransport(FrameLink())
    task = asyncio.create_task(transport.link.exchange(b"fetch", MAX_FRAME_BYTES))
    await asyncio.sleep(0)
    transport.deliver(struct.pack(">i", size) + b"more", lambda: 5)
    assert not transport.is_closed
    with transport.link.get_buffer(-1) as buffer:
        assert len(buffer) == FIRST_BYTES - 4
    task.cancel()


async def test_the_request_after_one_for_records_allows_no_long_answer() -> None:
    transport = PiecesTransport(FrameLink())
    task = asyncio.create_task(transport.link.exchange(b"fetch", MAX_FRAME_BYTES))
    await asyncio.sleep(0)
    transport.deliver(framed(b"records"), lambda: 100)
    assert await task == b"records"
    task = await begin(transport)
    transport.deliver(struct.pack(">i", MAX_RESPONSE_BYTES + 1), lambda: 5)
    with pytest.raises(ConnectionAbortedError, match="this is not a Kafka node"):
        await task


async def test_a_response_without_a_request_closes_the_connection() -> None:
    transport = PiecesTransport(FrameLink())
    task = await begin(transport)
    transport.deliver(framed(b"answer"), lambda: 100)
    assert await task == b"answer"
    transport.deliver(framed(b"again"), lambda: 100)
    assert transport.is_closed
    with pytest.raises(ConnectionAbortedError, match="not asked for"):
        await transport.link.exchange(b"next")


async def test_a_cancelled_request_closes_the_connection() -> None:
    transport = PiecesTransport(FrameLink())
    task = await begin(transport)
    transport.deliver(framed(b"half an answer")[:9], lambda: 100)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert transport.is_closed


@pytest.mark.parametrize("error", [None, ConnectionResetError(104, "Connection reset by peer")])
@pytest.mark.parametrize("received", [0, 2, 9])
async def test_a_lost_connection_fails_waiting_and_later_requests(error: Exception | None, received: int) -> None:
    transport = PiecesTransport(FrameLink())
    task = await begin(transport)
    transport.deliver(framed(b"half an answer")[:received], lambda: 100)
    transport.link.connection_lost(error)
    with pytest.raises(ConnectionResetError):
        await task
    with pytest.raises(ConnectionResetError):
        await transport.link.exchange(b"next")


async def exchange_with_a_server(sizes: list[int]) -> list[int]:
    """Return the lengths of the answers of a server, which answers with as many bytes as it is asked for."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in sizes:
            _, size = struct.unpack(">ii", await reader.readexactly(8))
            writer.write(framed(bytes(size)))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, link = await asyncio.get_running_loop().create_connection(FrameLink, "127.0.0.1", port)
        lengths = [len(await link.exchange(struct.pack(">i", size))) for size in sizes]
        with pytest.raises(ConnectionError):
            await link.exchange(b"more")
        link.close()
    return lengths


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_answers_are_received_by_asyncio_and_by_uvloop(
    run: Callable[[Coroutine[Any, Any, list[int]]], list[int]],
) -> None:
    sizes = [4, 100, 3_000_000, 4]
    assert run(exchange_with_a_server(sizes)) == sizes


async def give_up_a_request_that_is_not_read() -> None:
    """Cancel a long request to a node that hangs, and wait until its socket is closed."""
    is_over = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_over.wait()
        writer.transport.abort()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, link = await asyncio.get_running_loop().create_connection(FrameLink, "127.0.0.1", port)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await link.exchange(bytes(32 << 20))
        try:
            async with asyncio.timeout(10):
                while not link.is_closed:  # noqa: ASYNC110 - a state of a socket
                    await asyncio.sleep(0.001)
        finally:
            is_over.set()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_connection_to_a_node_that_reads_nothing_is_closed_at_once(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """While it waited for the node to read on, each attempt kept a descriptor and its request."""
    run(give_up_a_request_that_is_not_read())
