"""Levels of loggers as configs of BROKER_LOGGER."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tidelog.broker.config.changes import Change, Operation
from tidelog.broker.config.logger_levels import ROOT, change_levels, describe_loggers, logger_of, set_levels
from tidelog.protocol.errors import InvalidConfigError, InvalidRequestError, KafkaError

NAME = "tests.of.logger.levels"


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    logger, root = logging.getLogger(NAME), logging.getLogger()
    before = root.level
    yield logger
    logger.setLevel(logging.NOTSET)
    root.setLevel(before)


@pytest.mark.parametrize(
    ("text", "level"),
    [("TRACE", logging.DEBUG), ("warn", logging.WARNING), ("ERROR", logging.ERROR), ("fatal", logging.CRITICAL)],
)
def test_a_level_is_in_force_and_described(logger: logging.Logger, text: str, level: int) -> None:
    set_levels({NAME: text}, validate_only=False)
    assert logger.level == level
    (entry,) = describe_loggers([NAME])
    shown = {"TRACE": "DEBUG"}.get(text.upper(), text.upper())
    assert (entry.name, entry.value, entry.synonyms[0].value) == (NAME, shown, shown)


def test_a_logger_without_a_level_has_that_above_it() -> None:
    set_levels({ROOT: "ERROR"}, validate_only=False)
    assert [entry.value for entry in describe_loggers([NAME])] == ["ERROR"]


def test_the_root_logger_is_listed_first() -> None:
    names = [entry.name for entry in describe_loggers()]
    assert names[0] == ROOT
    assert names[1:] == sorted(names[1:])
    assert NAME in names


@pytest.mark.parametrize("texts", [{"no.such.logger": "INFO"}, {NAME: "LOUD"}, {NAME: "DEBUG", "no.such": "INFO"}])
def test_a_mistake_changes_nothing(logger: logging.Logger, texts: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError):
        set_levels(texts, validate_only=False)
    assert logger.level == logging.NOTSET
    assert logger_of("").name != "no.such"


def test_a_change_that_is_only_validated_changes_nothing(logger: logging.Logger) -> None:
    set_levels({NAME: "DEBUG"}, validate_only=True)
    assert logger.level == logging.NOTSET


def test_a_level_that_is_removed_is_that_of_the_logger_above(logger: logging.Logger) -> None:
    set_levels({ROOT: "ERROR"}, validate_only=False)
    change_levels([Change(NAME, Operation.SET, "DEBUG")], validate_only=False)
    change_levels([Change(NAME, Operation.DELETE, None)], validate_only=True)
    assert logger.level == logging.DEBUG
    change_levels([Change(NAME, Operation.DELETE, None)], validate_only=False)
    assert [entry.value for entry in describe_loggers([NAME])] == ["ERROR"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (Change(ROOT, Operation.DELETE, None), InvalidRequestError),
        (Change("no.such.logger", Operation.DELETE, None), InvalidConfigError),
        (Change(ROOT, Operation.APPEND, "INFO"), InvalidRequestError),
        (Change(ROOT, Operation.SUBTRACT, "INFO"), InvalidRequestError),
        (Change(ROOT, Operation.SET, None), InvalidRequestError),
    ],
)
def test_a_change_that_kafka_refuses_changes_nothing(
    logger: logging.Logger, wrong: Change, error: type[KafkaError]
) -> None:
    with pytest.raises(error):
        change_levels([Change(NAME, Operation.SET, "DEBUG"), wrong], validate_only=False)
    assert logger.level == logging.NOTSET
