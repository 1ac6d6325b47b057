"""Log levels as configs of the resource BROKER_LOGGER (KIP-412): described, and changed while the broker runs.

Names are those of the existing Python loggers, and ``root``; levels have the names that Kafka's tools use.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from tidelog.broker.config.changes import Change, Operation, apply_changes
from tidelog.broker.config.description import ConfigEntry, ConfigSource, ConfigSynonym
from tidelog.protocol.config_def import ConfigDef, ConfigType
from tidelog.protocol.errors import InvalidConfigError, InvalidRequestError

ROOT = "root"
LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_NAMES = {number: name for name, number in LEVELS.items()}


def describe_loggers(keys: Collection[str] | None = None) -> list[ConfigEntry]:
    """Describe the level in force of every logger, or only of those in ``keys``."""
    manager = logging.Logger.manager.loggerDict
    names = [ROOT, *sorted(name for name, logger in manager.items() if isinstance(logger, logging.Logger))]
    return [describe_logger(name) for name in names if keys is None or name in keys]


def describe_logger(name: str) -> ConfigEntry:
    """Describe one logger's level."""
    level = _NAMES.get(logger_of(name).getEffectiveLevel(), "INFO")
    source = ConfigSource.DYNAMIC_BROKER_LOGGER
    synonyms = [ConfigSynonym(name, level, source)]
    return ConfigEntry(name, level, source, False, False, synonyms, int(ConfigType.STRING), "")


def set_levels(texts: Mapping[str, str], validate_only: bool) -> None:
    """Set levels of loggers that exist. Raises InvalidConfigError before any is changed."""
    for name, text in texts.items():
        check_exists(name)
        if text.upper() not in LEVELS:
            raise InvalidConfigError(f"Cannot set the log level of {name} to {text}; allowed: {', '.join(LEVELS)}")
    if not validate_only:
        for name, text in texts.items():
            logger_of(name).setLevel(LEVELS[text.upper()])


def change_levels(changes: Sequence[Change], validate_only: bool) -> None:
    """Set levels, or remove those that were set: the logger then has its parent's level.

    Raises InvalidConfigError, InvalidRequestError before any is changed.
    """
    for change in changes:
        if change.operation in (Operation.APPEND, Operation.SUBTRACT):
            raise InvalidRequestError(
                f"{change.operation.name} operation is not allowed for the BROKER_LOGGER resource"
            )
    texts = apply_changes(ConfigDef(()), {}, changes)
    removed = [change.name for change in changes if change.operation is Operation.DELETE]
    for name in removed:
        check_exists(name)
        if name == ROOT:
            raise InvalidRequestError(f"Removing the log level of the {ROOT} logger is not allowed")
    set_levels(texts, validate_only)
    if not validate_only:
        for name in removed:
            logger_of(name).setLevel(logging.NOTSET)


def check_exists(name: str) -> None:
    """Raise InvalidConfigError unless there is a logger of this name or below it."""
    if name != ROOT and name not in logging.Logger.manager.loggerDict:
        raise InvalidConfigError(f"Logger {name} does not exist!")


def logger_of(name: str) -> logging.Logger:
    """Return the logger of this name."""
    return logging.getLogger(None if name == ROOT else name)
