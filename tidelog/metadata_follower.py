"""A blocking connection between an ``Observer``, which reads a cluster's metadata log, and the controllers.

The connection sends one request at a time and waits for the response; the observer chooses controller and request.
Commands use it; a broker has connections of its own.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from tidelog.broker.cluster.observing.observer import Observer, ObserverConfig, Question
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.replay import PublishedImage
from tidelog.client import Client, ClientError
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.messages import fetch, fetch_snapshot

DEFAULT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 5.0
"""Timeout of one response, in seconds; without new records a controller delays a Fetch by half a second."""
MIN_FETCH_VERSION = 17
"""The Fetch of Kafka 3.9, the first whose responses have the leader's endpoint for observers (KIP-853)."""


class NotAControllerError(Exception):
    """The process at the address is not a controller, or one of a Kafka before 3.9."""


class CatchUpError(Exception):
    """The committed metadata could not be read in time."""


class MetadataFollower:
    """An observer with one connection to a controller; a context manager. One thread at a time."""

    def __init__(self, config: ObserverConfig) -> None:
        self.observer = Observer(config)
        self._client: Client | None = None
        self._address: Address | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
        self._client = self._address = None

    def catch_up(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> MetadataImage:
        """Send requests until the metadata image has all committed records of the active controller, and return it.

        Raises CatchUpError when that takes longer than ``timeout_s``, and the errors of ``step``.
        """
        deadline = time.monotonic() + timeout_s
        self.step()
        while not self.observer.is_caught_up:
            if time.monotonic() > deadline:
                reason = self.observer.last_failure or (
                    f"{self._address} did not send all committed records, or has committed nothing in its epoch"
                )
                raise CatchUpError(f"no metadata within {timeout_s:g} s: {reason}")
            self.step()
        return self.observer.image

    def step(self) -> PublishedImage | None:
        """Wait until the next request is due, and send it; return the new image, if the response changed it.

        Raises NotAControllerError, and the errors of ``Observer.take_answer``.
        """
        question = self.observer.next_question()
        time.sleep(max(0.0, question.not_before_ms / 1000 - time.monotonic()))
        try:
            answer = self._ask(question)
        except (ClientError, InvalidRequestError) as error:
            self.close()
            self.observer.take_failure(str(error), time.monotonic() * 1000)
            return None
        return self.observer.take_answer(answer, time.monotonic() * 1000)

    def _ask(self, question: Question) -> fetch.FetchResponse | fetch_snapshot.FetchSnapshotResponse:
        client = self._client_of(question.address)
        if isinstance(question.request, fetch.FetchRequest):
            return client.call(question.request, fetch.FetchResponse)
        return client.call(question.request, fetch_snapshot.FetchSnapshotResponse)

    def _client_of(self, address: Address) -> Client:
        """Return the connection to this controller. Raises ClientError, NotAControllerError."""
        if self._client is None or self._address != address:
            self.close()
            client = Client(str(address), REQUEST_TIMEOUT_S)
            self._client, self._address = client, address
            _ensure_controller(client)
        return self._client


def _ensure_controller(client: Client) -> None:
    served = client.api_versions()
    if ApiKey.FETCH_SNAPSHOT not in served:
        raise NotAControllerError(
            f"{client.bootstrap} is not a controller: it does not serve FetchSnapshot; expected the address of a "
            "controller's listener, not of a broker's"
        )
    highest = served.get(ApiKey.FETCH, (0, -1))[1]
    if highest < MIN_FETCH_VERSION:
        raise NotAControllerError(
            f"{client.bootstrap} serves Fetch up to version {highest}: Kafka 3.9 and later serve {MIN_FETCH_VERSION}"
        )
