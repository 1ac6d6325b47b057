"""Log levels as configs of the resource BROKER_LOGGER (KIP-412): describe them, change them while running.

Names are those of the Python loggers that exist, and ``root``; levels are called as Kafka's tools call them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from tidelog.broker.config.description import ConfigEntry, ConfigSource, ConfigSynonym
from tidelog.protocol.config_def import ConfigType
from tidelog.protocol.errors import InvalidConfigError

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
    """Describe the level in force of every logger."""
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
        if name != ROOT and name not in logging.Logger.manager.loggerDict:
            raise InvalidConfigError(f"Logger {name} does not exist!")
        if text.upper() not in LEVELS:
            raise InvalidConfigError(f"Cannot set the log level of {name} to {text}; allowed: {', '.join(LEVELS)}")
    if not validate_only:
        for name, text in texts.items():
            logger_of(name).setLevel(LEVELS[text.upper()])


def logger_of(name: str) -> logging.Logger:
    """Return the logger of this name."""
    return logging.getLogger(None if name == ROOT else name)
