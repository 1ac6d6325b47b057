"""Publishers of the metadata run one after the other: an error of one is counted, and the others still get the
change."""

from __future__ import annotations

import logging

import pytest

from tidelog.broker.controller.metadata_controller import Publisher, Publishers
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, MetadataImage
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.errors import KafkaStorageError

IMAGE = EMPTY_IMAGE._replace(offset=41)
ERRORS = [
    ConfigError("c"),
    KafkaStorageError("k"),
    ValueError("v"),
    KeyError("k"),
    AssertionError("a"),
    OSError(28, "o"),
]


def recording_publisher(called: list[str], name: str) -> Publisher:
    return Publisher(name, lambda delta, image: called.append(name))


def failing_publisher(name: str, error: BaseException) -> Publisher:
    def publish(delta: MetadataDelta, image: MetadataImage) -> None:
        raise error

    return Publisher(name, publish)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", range(3))
def test_publishers_after_one_that_fails_are_called(
    caplog: pytest.LogCaptureFixture, error: Exception, place: int
) -> None:
    called: list[str] = []
    listed = [recording_publisher(called, "first"), recording_publisher(called, "second")]
    listed.insert(place, failing_publisher("broken", error))
    publishers = Publishers()
    for publisher in listed:
        publishers.subscribe(publisher)
    publishers.publish(MetadataDelta(EMPTY_IMAGE), IMAGE)
    assert called == ["first", "second"]
    assert publishers.errors_total == 1
    (logged,) = caplog.records
    assert (logged.levelno, logged.exc_info is not None) == (logging.ERROR, True)
    assert logged.message.startswith("broken: cannot apply the metadata up to offset 41: " + type(error).__name__)


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_process_is_no_error(end: type[BaseException]) -> None:
    publishers = Publishers()
    publishers.subscribe(failing_publisher("stopping", end()))
    with pytest.raises(end):
        publishers.publish(MetadataDelta(EMPTY_IMAGE), IMAGE)
    assert publishers.errors_total == 0
