"""A client that produces a record every 10 ms while other clients send requests."""

from __future__ import annotations

import struct
import time

from benchmarks.beside import Beside
from tests.support import raw_client
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

EVERY_S = 0.01
_LIST_OFFSETS, _LATEST = 2, -1


class Bystander(Beside):
    """A producer with a connection and a thread of its own, alone in its topic. ``acknowledged`` counts its records."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self.acknowledged = 0
        self.longest_wait_s = 0.0
        self._port = port
        self._connection = raw_client.connect(port)
        self._failure: BaseException | None = None

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._connection.close()
        if self._failure is not None:
            raise self._failure

    def wait_for(self, records: int) -> None:
        """Wait until this many more records are acknowledged."""
        wanted = self.acknowledged + records
        while self.acknowledged < wanted and self._thread.is_alive():
            time.sleep(EVERY_S)

    def run(self) -> None:
        """Produce until the context manager ends."""
        try:
            while not self.is_ended.wait(EVERY_S):
                self._produce()
        except Exception as error:  # noqa: BLE001 - raised by __exit__
            self._failure = error

    def _produce(self) -> None:
        began = time.monotonic()
        self._connection.sendall(raw_client.produce(self._topic, b"here"))
        _, error_code, base_offset = raw_client.receive_produced(self._connection)
        self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began)
        assert (error_code, base_offset) == (0, self.acknowledged)
        self.acknowledged += 1

    def end_offset(self) -> int:
        """Read the end offset of the topic's log."""
        asked = [ListOffsetsPartition(partition_index=0, timestamp=_LATEST)]
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=self._topic, partitions=asked)])
        with raw_client.connect(self._port) as connection:
            connection.sendall(raw_client.frame(_LIST_OFFSETS, 1, 1, request.encode(1)))
            response = raw_client.receive_frame(connection)
        (correlation_id,) = struct.unpack_from(">i", response)
        assert correlation_id == 1
        return ListOffsetsResponse.decode(memoryview(response)[4:], 1).topics[0].partitions[0].offset
