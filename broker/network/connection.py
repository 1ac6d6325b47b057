"""One client's connection: it receives frames from a non-blocking transport, has them answered, and sends the answers.

A turn: one ``recv`` into the scratch buffer that all connections share -> every complete frame in it is answered
straight out of it -> the answers leave in one ``send``. Only the bytes after these frames (part of a frame) are copied
into a reader of the connection's own; the rest of a large frame is then received there directly, into a buffer that
grows with arriving bytes. So an idle connection owns no buffer.

    state            reads                        leaves it when
    open             yes                          a request must wait; too much is queued; the turn is over
    waiting          ahead, to READ_AHEAD_BYTES   its answer comes (long poll, rebalance); see ``hurry``
    in line          yes, produce requests        all answers in line have come (``late_answers``)
    queue too long   ahead, to READ_AHEAD_BYTES   the client has drained it below QUEUE_BYTES
    memory is full   to READ_AHEAD_BYTES          it may read (``tidelog.broker.network.request_memory``)
    ended            no                           the client sends no more; the scheduled turn is over: then closed
    finishing        no                           the last answer is sent: then closed

A turn is over after FRAMES_PER_TURN frames or TURN_MS. Frames that are left wait in the reader for the next turn.

Invariants: frames are carried out and answered in order; a frame's view is valid only during the ``dispatch`` call;
while a thread sends bytes of a file (``_send_cold``), the socket is not closed, as its descriptor number could be used
again; a client that begins a frame and does not go on, reads no answers, or has reset the connection, is closed by
``Shell.sweep``.
"""

from __future__ import annotations

import logging
import struct
from asyncio import Future
from collections.abc import Callable
from functools import partial

from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.timers import Timer
from tidelog.broker.network.late_answers import AnswerLine, LineEntry, MutedAnswer
from tidelog.broker.network.send_queue import ALL, SendQueue, SendStatus, send_at_once
from tidelog.broker.network.shell import Shell
from tidelog.broker.network.transport import Transport, is_reset
from tidelog.broker.network.wakefulness import QUICK_REQUESTS, Wakefulness
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.route import Answer, Parts, Pending
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidReceiveError, InvalidRequestError
from tidelog.protocol.frames import FrameReader, refuse_size
from tidelog.protocol.transferable import SliceCutShortError, release_slices

logger = logging.getLogger(__name__)

FRAMES_PER_TURN = 64
"""Largest number of frames handled in one turn, so that one pipelining client cannot block the loop."""
TURN_MS = 2.0
"""After this time the connection's next frames wait until other connections had their turns."""
FRAMES_PER_LOOK = 4
"""The clock is read after this many frames, and before each one larger than SMALL_FRAME_BYTES."""
SMALL_FRAME_BYTES = 512
READ_AHEAD_BYTES = 64 * 1024
"""A connection with this many buffered bytes of requests that have to wait is not read from."""
QUEUE_BYTES = 1024 * 1024
"""While this many bytes or more are to be sent, the connection's next request waits."""
RECEIVE_BYTES = 1024 * 1024
"""One receive into a connection's own buffer takes at most this much."""
LARGE_FRAME_BYTES = 64 * 1024
LARGEST_KEPT_BYTES = 4 * 1024 * 1024
"""A connection keeps its buffer for RELEASE_AFTER_MS after frames from LARGE_FRAME_BYTES up to this size."""
RELEASE_AFTER_MS = 2_000
SLOWEST_BYTES_PER_S = 32 * 1024
"""A frame may take ``stall_ms``, or as long as its received bytes take at this rate, if that is longer."""

Dispatch = Callable[[RequestContext, memoryview], Answer]

_unpack_length = struct.Struct(">i").unpack_from


class Connection:
    """One client's connection. Loop thread only."""

    __slots__ = (
        "_asked_ms",
        "_drain_scheduled",
        "_ended",
        "_finishing",
        "_has_frames",
        "_has_parts",
        "_idle_timer",
        "_in_thread",
        "_in_turn",
        "_is_watched_for_reset",
        "_last_active_ms",
        "_last_received_ms",
        "_last_sent_ms",
        "_line",
        "_out",
        "_partial_since_ms",
        "_pending",
        "_queue",
        "_quick_requests",
        "_reader",
        "_reading",
        "_shell",
        "_turn_scheduled",
        "_writing",
        "closed",
        "context",
        "dispatch",
        "max_frame_bytes",
        "sock",
    )

    def __init__(self, shell: Shell, sock: Transport, context: RequestContext) -> None:
        self._shell = shell
        self.sock = sock
        self.context = context
        self.dispatch: Dispatch = shell.dispatch
        self.max_frame_bytes = shell.limits.max_frame_bytes
        self.closed = False
        self._reader: FrameReader | None = None
        self._out: Parts = []  # answers of the turn, before they are sent
        self._queue: SendQueue | None = None
        self._pending: Pending | None = None  # the answer that all further requests wait for
        self._line: AnswerLine | None = None
        self._in_turn = False
        self._in_thread = False  # a thread sends from the queue
        self._finishing = False
        self._ended = False  # the client sends nothing more
        self._is_watched_for_reset = False
        self._has_frames = False  # received bytes may hold a complete frame
        self._has_parts = False  # ``_out`` has slices of files
        self._turn_scheduled = False
        self._drain_scheduled = False
        self._writing = False
        self._last_active_ms = self._last_sent_ms = self._last_received_ms = shell.monotonic_ms()
        self._quick_requests = 0
        self._partial_since_ms = self._asked_ms = 0.0
        shell.add(self)
        self._reading = True
        sock.add_reader(shell.loop, self.on_readable)
        self._idle_timer: Timer = shell.timers.schedule(shell.limits.max_idle_ms, partial(check_idle, self))

    # Receiving

    def on_readable(self) -> None:
        """Take one turn: there is something to receive, or the peer is gone."""
        turns = self._shell.turns
        began = turns.monotonic_ms()
        is_sample = began >= turns.due_ms
        if is_sample:
            turns.begin(began)
            is_sample = self._reader is None
        self._receive(began)
        ended = turns.monotonic_ms()
        if ended - began >= turns.notable_ms:
            note_turn(self, began, ended)
        if is_sample and self._reader is None and self._pending is None and not self._line and not self.closed:
            # Only complete requests were received, and all are answered.
            self._shell.times.record(self.context.api_key, ended - began)

    def _receive(self, now_ms: float) -> None:
        """Receive once, and answer the frames in it."""
        shell = self._shell
        reader = self._reader
        if reader is not None:
            receive_more(self, reader, now_ms)
            return
        try:
            count = self.sock.recv_into(shell.scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            end_of_stream(self)
            return
        if not self._is_watched_for_reset:
            self._is_watched_for_reset = True
            shell.watch_for_reset(self)
        self._last_active_ms = now_ms
        if self._pending is not None or self._line or self._queue:
            keep(self, shell.scratch[:count])
            self._has_frames = True
            self._end_turn()
            return
        note_gap(self, shell.wakefulness)
        self._in_turn = True
        try:
            taken = self._answer_frames(shell.scratch, count)
        except Exception as error:  # noqa: BLE001 - refuse logs it; a connection that nothing answers would hang
            refuse_in_order(self, error)
            return
        finally:
            self._in_turn = False
        if taken < count:
            keep(self, shell.scratch[taken:count])
        self._end_turn()

    def _answer_frames(self, view: memoryview, count: int) -> int:
        """Answer the complete frames in ``view[:count]``, and return how many bytes they took.

        The hot loop of the broker: a pipelining producer has dozens of frames in one receive.
        """
        dispatch, context, out = self.dispatch, self.context, self._out
        max_frame_bytes = self.max_frame_bytes
        monotonic_ms, deadline = self._shell.monotonic_ms, self._last_active_ms + TURN_MS
        position = owed = 0
        self._has_frames = True
        for handled in range(FRAMES_PER_TURN):
            if count - position < 4:
                self._has_frames = False
                break
            size = _unpack_length(view, position)[0]
            if not 0 <= size <= max_frame_bytes:
                raise refuse_size(size, max_frame_bytes)
            end = position + 4 + size
            if end > count:
                self._has_frames = False
                break
            is_due = not handled % FRAMES_PER_LOOK or size > SMALL_FRAME_BYTES
            if is_due and handled and monotonic_ms() >= deadline:
                break
            answer = dispatch(context, view[position + 4 : end])
            position = end
            if isinstance(answer, bytes):
                out.append(answer)
                owed += len(answer)
                if owed >= QUEUE_BYTES:
                    break
            elif isinstance(answer, list) and position == count:
                out += answer
                self._has_parts = True
            elif answer is not None and not self._take_answer(answer):
                break
        return position

    def _take_answer(self, answer: bytes | Parts | Pending) -> bool:
        """Queue an answer, or wait for it if it comes later; return whether the hot loop may go on."""
        if not isinstance(answer, Pending):
            queue_answer(self, answer)
        elif answer.is_carried_out:
            if self._line is None:
                self._line = AnswerLine()
            self._line.wait_for(answer, self._last_active_ms, partial(answer_in_line, self))
        else:
            self._pending = answer
            self._asked_ms = self._last_active_ms
            answer.on_answer(self._on_answer)
        return not self._line and self._may_handle()

    def _turn(self) -> None:
        """Answer frames out of the connection's own reader."""
        self._turn_scheduled = False
        reader = self._reader
        if reader is None or self.closed:
            return
        self._in_turn = self._has_frames = True
        deadline = self._shell.monotonic_ms() + TURN_MS
        largest = 0
        try:
            for _ in range(FRAMES_PER_TURN):
                if not self._may_handle() or (largest and self._shell.monotonic_ms() >= deadline):
                    break
                frame = reader.next_frame()
                if frame is None:
                    self._has_frames = False
                    break
                largest = max(largest, len(frame))
                answer = self.dispatch(self.context, frame)
                self._partial_since_ms = self._last_active_ms
                if answer is not None:
                    self._take_answer(answer)
        except Exception as error:  # noqa: BLE001 - refuse logs it; a connection that nothing answers would hang
            refuse_in_order(self, error)
            return
        finally:
            self._in_turn = False
        is_kept = LARGE_FRAME_BYTES <= largest <= LARGEST_KEPT_BYTES
        if largest and not is_kept and not reader.buffered_bytes:
            self._reader = None
            self._shell.memory.note(self, 0)
        self._end_turn()

    def _may_handle(self) -> bool:
        """Return whether the next request may be handled. The last one must be answered, unless both are produce
        requests; fewer than QUEUE_BYTES may be unsent, and the connection must not be finishing."""
        if self._pending is not None or self._finishing:
            return False
        reader = self._reader
        if self._line and not self._line.admits(None if reader is None else reader.next_api_key()):
            return False
        owed = 0 if self._queue is None else self._queue.queued_bytes
        for part in self._out:
            owed += len(part)
        return owed < QUEUE_BYTES

    def _end_turn(self) -> None:
        """Send what the turn produced, then decide what to wait for."""
        if self._out:
            self._flush()
        if self._line and (error := self._line.failure) is not None:
            refuse(self, error)
        if self.closed:
            return
        reader = self._reader
        if reader is not None and not self._turn_scheduled and self._has_frames and self._may_handle():
            self._turn_scheduled = True
            self._shell.loop.call_soon(measure, self, self._turn)
        if self._ended and not self._turn_scheduled:
            self.close()
            return
        if reader is not None:
            self._shell.memory.note(self, reader.buffered_bytes)
        if reader is not None or not self._reading or self._finishing:
            self.update_reading()
        if self._finishing:
            self.finish()
        elif self._pending is not None and reader is not None:
            hurry(self._pending, reader)

    @property
    def last_active_ms(self) -> float:
        """Monotonic time in milliseconds of the last receive or late answer; of the accept before the first."""
        return self._last_active_ms

    def wants_to_read(self) -> bool:
        """Return whether a complete frame could be handled now."""
        return not (self._finishing or self._ended or self._turn_scheduled) and self._may_handle()

    def update_reading(self) -> None:
        """Start or stop reading from the socket, as the connection's state demands."""
        reader = self._reader
        wanted = not (self._finishing or self._ended)
        if reader is not None and reader.buffered_bytes >= READ_AHEAD_BYTES:
            wanted = wanted and self.wants_to_read() and self._shell.memory.admits(self)
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self.sock.add_reader(self._shell.loop, self.on_readable)
            else:
                self.sock.remove_reader(self._shell.loop)

    # Answering

    def _on_answer(self, answer: bytes | Parts | None) -> None:
        """Send a deferred answer that came; if it came within the request's turn, that turn sends it."""
        self._pending = None
        if self.closed:
            release_slices(answer)
        elif answer is None:
            refuse_in_order(self, CloseConnectionError("a deferred request failed"))
        else:
            if answer:
                queue_answer(self, answer)
            if self.context.throttle_ms:
                self._pending = MutedAnswer(self._shell.timers, self.context, self._on_answer)
            if not self._in_turn:
                now = self._last_active_ms = self._shell.monotonic_ms()
                if answer:
                    self._shell.times.record(self.context.api_key, now - self._asked_ms)
                self._end_turn()

    def _flush(self) -> None:
        """Hand this turn's answers to the kernel, or to the queue when the kernel cannot take them."""
        out, queue = self._out, self._queue
        sent = 0
        if not queue:
            try:
                sent = send_at_once(self.sock, out, has_slices=self._has_parts)
            except (OSError, SliceCutShortError) as error:
                refuse(self, error)
                return
            if sent == ALL:
                out.clear()
                self._has_parts = False
                return
        if queue is None:
            queue = self._queue = SendQueue()
        if not queue:
            self._last_sent_ms = self._last_active_ms
        queue.extend(out)
        if sent:
            queue.advance(sent)
        out.clear()
        self._has_parts = False
        if not (self._writing or self._in_thread or self._drain_scheduled):
            self._drain()

    def _drain(self) -> None:
        """Send as much of the queue as one turn may, and arrange for the rest."""
        self._drain_scheduled = False
        queue = self._queue
        if self.closed or not queue:
            return
        owed = queue.queued_bytes
        try:
            status = queue.send_some(self.sock)
        except (OSError, SliceCutShortError) as error:
            refuse(self, error)
            return
        if queue.queued_bytes < owed:
            self._last_sent_ms = self._shell.monotonic_ms()
        set_writing(self, status is SendStatus.BLOCKED)
        if status is SendStatus.MORE:
            self._drain_scheduled = True
            self._shell.loop.call_soon(measure, self, self._drain_turn)
        elif status is SendStatus.COLD:
            self._send_cold(queue)
        elif status is SendStatus.BLOCKED:
            self._shell.watch(self)

    def _drain_turn(self) -> None:
        """Go on sending; once the queue is short enough, handle the requests that waited."""
        self._drain()
        if not self.closed:
            self._end_turn()

    def _send_cold(self, queue: SendQueue) -> None:
        """Let a thread wait for the disk, and send the next bytes of a slice that are not in the page cache."""
        try:
            future = self._shell.loop.run_in_executor(self._shell.executor, queue.send_cold, self.sock)
        except (MemoryError, RuntimeError) as error:  # no thread can be started
            refuse(self, error)
            return
        self._in_thread = True
        future.add_done_callback(self._finish_cold_send)

    def _finish_cold_send(self, future: Future[int]) -> None:
        self._in_thread = False
        error = future.exception()
        if self.closed:
            release_socket(self.sock, self._queue)
        elif error is not None:
            refuse(self, error)
        else:
            assert self._queue is not None
            sent = future.result()
            self._queue.advance(sent)
            if sent:
                self._last_sent_ms = self._shell.monotonic_ms()
                measure(self, self._drain_turn)
            else:
                set_writing(self, True)

    # The end

    def finish(self) -> None:
        """Handle no further request; close once the requests under way are answered and the answers sent."""
        self._finishing = True
        if self.closed:
            return
        self.update_reading()
        if isinstance(self._pending, MutedAnswer):
            self._pending.abandon()
            self._pending = None
        if self._pending is None and not (self._line or self._out or self._queue or self._in_thread):
            self.close()

    def close(self) -> None:
        """Close now; unsent answers are dropped."""
        if self.closed:
            return
        self.closed = True
        if self._reading:
            self.sock.remove_reader(self._shell.loop)
        if self._writing:
            self.sock.remove_writer(self._shell.loop)
        self._idle_timer.cancel()
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.abandon()
        if self._line:
            self._line.abandon()
        if self.context.on_close is not None:
            self.context.on_close()
        release_slices(self._out)
        self._out = []
        self._reader = None
        if not self._in_thread:
            release_socket(self.sock, self._queue)
        self._shell.forget(self)

    def close_if_reset(self) -> bool:
        """Close if the client has reset the connection; return whether it has. What it sent before is handled first,
        unless an earlier answer is still to come or to be sent. The loop calls ``on_readable`` only once for a reset:
        if that call received data, no other call reports the end.
        """
        self._is_watched_for_reset = False
        if self.closed or not is_reset(self.sock):
            return False
        if self._pending is not None or self._line or self._queue or self._in_thread:
            self.close()
        elif not self._turn_scheduled and self._reading:
            self.on_readable()
        elif not self._turn_scheduled:
            self.close()
        if not self.closed:
            self._shell.loop.call_soon(self.close_if_reset)
        return True

    def inspect(self, now_ms: float) -> bool:
        """Close if the client is too slow, or release an unused buffer; return whether to inspect it again."""
        limits = self._shell.limits
        if self._queue and now_ms - self._last_sent_ms > limits.stall_ms:
            refuse(self, TimeoutError("the client does not read its answers"))
            return False
        reader = self._reader
        if reader is None:
            return bool(self._queue)
        if not reader.buffered_bytes:
            if now_ms - self._last_active_ms > RELEASE_AFTER_MS or self._shell.memory.is_full:
                self._reader = None
        elif self._reading and self._may_handle() and not self._turn_scheduled:
            allowed = max(limits.stall_ms, reader.buffered_bytes * 1000 / SLOWEST_BYTES_PER_S)
            if self._shell.memory.is_full:
                allowed = limits.stall_ms  # other connections wait for its memory
            if now_ms - self._partial_since_ms > allowed:
                refuse(self, TimeoutError("the client began a frame and did not go on"))
                return False
        else:
            self._partial_since_ms = now_ms
        return True


def queue_answer(connection: Connection, answer: bytes | Parts) -> None:
    """Queue an answer after those of earlier requests."""
    if connection._line:
        connection._line.add(answer, connection._last_active_ms)
    elif isinstance(answer, bytes):
        connection._out.append(answer)
    else:
        connection._out += answer
        connection._has_parts = True


def answer_in_line(connection: Connection, entry: LineEntry, answer: bytes | Parts | None) -> None:
    """Put the late answer to a produce request in line, and send those at its front that have come."""
    line, shell = connection._line, connection._shell
    if connection.closed or line is None:
        release_slices(answer)
        return
    if answer is None:
        line.fail(entry, CloseConnectionError("a deferred request failed"))
    else:
        entry.answer = answer
        connection._out += line.take_ready()
    if not connection._in_turn:
        now = connection._last_active_ms = shell.monotonic_ms()
        shell.times.record(ApiKey.PRODUCE, now - entry.asked_ms)
        connection._end_turn()


def receive_more(connection: Connection, reader: FrameReader, now_ms: float) -> None:
    """Receive once into the connection's own reader, and answer the complete frames in it."""
    shell = connection._shell
    if shell.memory.is_full:
        connection.update_reading()
        if not connection._reading:
            return
    try:
        count = connection.sock.recv_into(reader.get_buffer()[:RECEIVE_BYTES])
    except (BlockingIOError, InterruptedError):
        return
    except OSError:
        count = 0
    if not count:
        end_of_stream(connection)
        return
    if not connection._is_watched_for_reset:
        connection._is_watched_for_reset = True
        shell.watch_for_reset(connection)
    connection._last_active_ms = now_ms
    reader.buffer_updated(count)
    connection._turn()
    if not connection.closed:
        connection.sock.expect(reader.missing_bytes)


def end_of_stream(connection: Connection) -> None:
    """Close, after the scheduled turn if there is one: the client sends no more. Waits and unsent answers are lost."""
    if connection._turn_scheduled:
        connection._ended = True
        connection.update_reading()
    else:
        connection.close()


def keep(connection: Connection, rest: memoryview) -> None:
    """Copy the bytes that the turn did not handle from the shared scratch buffer to a reader."""
    shell = connection._shell
    connection._reader = FrameReader(connection.max_frame_bytes)
    connection._reader.receive_data(rest)
    connection._partial_since_ms = connection._last_active_ms
    shell.watch(connection)


def guard(connection: Connection, dispatch: Dispatch, max_frame_bytes: int | None = None) -> None:
    """Let another function answer the frames, and limit their size; None restores the usual limit."""
    connection.dispatch = dispatch
    connection.max_frame_bytes = max_frame_bytes or connection._shell.limits.max_frame_bytes
    if connection._reader is not None:
        connection._reader.max_frame_bytes = connection.max_frame_bytes


def check_idle(connection: Connection) -> None:
    """Close a connection that was idle for too long, else check again later."""
    shell = connection._shell
    idle_ms = shell.monotonic_ms() - connection._last_active_ms
    waits = connection._pending is not None or connection._line or connection._queue
    if idle_ms >= shell.limits.max_idle_ms and not waits:
        connection.close()
        return
    wait_ms = max(shell.limits.max_idle_ms - idle_ms, 1000)
    connection._idle_timer = shell.timers.schedule(wait_ms, partial(check_idle, connection))


def measure(connection: Connection, work: Callable[[], None]) -> None:
    """Do ``work`` as a turn of its own, and measure it. ``on_readable`` repeats these lines for speed."""
    turns = connection._shell.turns
    began = turns.monotonic_ms()
    if began >= turns.due_ms:
        turns.begin(began)
    work()
    ended = turns.monotonic_ms()
    if ended - began >= turns.notable_ms:
        note_turn(connection, began, ended)


def note_turn(connection: Connection, began_ms: float, ended_ms: float) -> None:
    """Report a turn of ``notable_ms`` or longer to the turn clock, with the last request in it."""
    context = connection.context
    connection._shell.turns.end(began_ms, ended_ms, api_name(context), context.client_host)


def api_name(context: RequestContext) -> str:
    """Name the API of a connection's last request, as the log and the metrics do."""
    return "no request" if context.api_key < 0 else ApiKey(context.api_key).name


def note_gap(connection: Connection, wakefulness: Wakefulness) -> None:
    """Count requests in quick succession; after QUICK_REQUESTS of them report each to ``wakefulness``."""
    now = connection._last_active_ms
    gap_ms = now - connection._last_received_ms
    connection._last_received_ms = now
    if gap_ms >= wakefulness.window_ms:
        connection._quick_requests = 0
        return
    connection._quick_requests += 1
    if connection._quick_requests >= QUICK_REQUESTS:
        wakefulness.note_request(now, gap_ms)


def hurry(pending: Pending, reader: FrameReader) -> None:
    """Answer a waiting fetch now when another request came after it.

    Spark's Kafka source and every Java consumer that asks a position send ListOffsets on the connection of a fetch that
    waits at the end of the log. Answered in order, it would wait ``fetch.max.wait.ms`` (500 ms). A fetch after a fetch
    changes nothing: a client that pipelines fetches would spin.
    """
    key = reader.next_api_key()
    if key is not None and key != ApiKey.FETCH:
        pending.hurry()


_EXPECTED = (InvalidRequestError, InvalidReceiveError, CloseConnectionError, OSError, SliceCutShortError)


def refuse(connection: Connection, error: BaseException) -> None:
    """Close, and log the reason in one line; a defect, or a lack of memory, is logged with its traceback."""
    if not connection.closed:
        fault = None if isinstance(error, _EXPECTED) else error
        level = logging.INFO if fault is None else logging.ERROR
        logger.log(level, "closing the connection of %s: %s", connection.context.client_host, error, exc_info=fault)
        connection.close()


def refuse_in_order(connection: Connection, error: Exception) -> None:
    """Close because of the last request, once earlier ones are answered, so that the client does not repeat these."""
    if connection._line:
        connection._line.end(error)
        connection._end_turn()
        return
    if connection._out:
        connection._flush()
    refuse(connection, error)


def set_writing(connection: Connection, wanted: bool) -> None:
    """Start or stop waiting until the socket is writable."""
    if wanted == connection._writing:
        return
    connection._writing = wanted
    if wanted:
        connection.sock.add_writer(connection._shell.loop, partial(measure, connection, connection._drain_turn))
    else:
        connection.sock.remove_writer(connection._shell.loop)


def release_socket(sock: Transport, queue: SendQueue | None) -> None:
    """Close the socket and release the files of unsent slices."""
    if queue is not None:
        queue.drop()
    sock.close()
