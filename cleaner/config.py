"""Broker settings of the log cleaner. Topic settings of compaction (``min.cleanable.dirty.ratio`` and others) and their
broker-wide synonyms are in ``tidelog.log.config``.

Names and defaults are Kafka's, but some ranges are narrower. ``log.cleaner.hash.algorithm`` is Tidelog's. All can
change at run time, except ``log.cleaner.enable``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.protocol.config_def import ConfigDef, ConfigKey, ConfigType, Importance, between, one_of

_MEDIUM = Importance.MEDIUM
#: Near load 1 searches become long, as hardly an entry is free; near load 0 hardly any key fits.
_LOAD_FACTOR = between(0.01, 0.99)

CLEANER_CONFIG_DEF = ConfigDef(
    (
        ConfigKey(
            "log.cleaner.enable",
            ConfigType.BOOLEAN,
            True,
            None,
            _MEDIUM,
            "Whether compacted topics are cleaned. Without it they grow without bound, __consumer_offsets included.",
        ),
        ConfigKey(
            "log.cleaner.threads",
            ConfigType.INT,
            1,
            between(1, 64),
            _MEDIUM,
            "How many logs are cleaned at the same time, each by its own thread.",
            dynamic=True,
        ),
        ConfigKey(
            "log.cleaner.io.max.bytes.per.second",
            ConfigType.DOUBLE,
            1.7976931348623157e308,
            between(1),
            _MEDIUM,
            "Reads and writes of all cleaner threads together are held below this rate.",
            dynamic=True,
        ),
        ConfigKey(
            "log.cleaner.dedupe.buffer.size",
            ConfigType.LONG,
            128 * 1024 * 1024,
            between(64 * 1024),
            _MEDIUM,
            "Most memory for maps of keys in all cleaner threads; taken as keys need it. More keys than fit go "
            "through a temporary file.",
            dynamic=True,
        ),
        ConfigKey(
            "log.cleaner.io.buffer.size",
            ConfigType.INT,
            512 * 1024,
            between(0),
            _MEDIUM,
            "Half of the bytes of a segment that a cleaner thread reads at once. It reads more at once where batches "
            "are large.",
            dynamic=True,
        ),
        ConfigKey(
            "log.cleaner.io.buffer.load.factor",
            ConfigType.DOUBLE,
            0.9,
            _LOAD_FACTOR,
            _MEDIUM,
            "Share of the map of keys that may fill up before its entries go to the temporary file.",
            dynamic=True,
        ),
        ConfigKey(
            "log.cleaner.backoff.ms",
            ConfigType.LONG,
            15_000,
            between(0),
            _MEDIUM,
            "Wait before looking again when no log needed cleaning.",
            dynamic=True,
        ),
        ConfigKey(
            "log.cleaner.hash.algorithm",
            ConfigType.STRING,
            "siphash128",
            one_of("siphash128", "md5"),
            Importance.LOW,
            "Digest that stands for a key in the map: SipHash-2-4 with 128 bits under a random key, or MD5 as Kafka.",
            dynamic=True,
        ),
    )
)


@dataclass(frozen=True, slots=True)
class CleanerConfig:
    """Values of the cleaner's settings, and each thread's share of the memory."""

    enabled: bool
    threads: int
    io_max_bytes_per_second: float
    dedupe_buffer_size: int
    io_buffer_size: int
    load_factor: float
    backoff_ms: int
    hash_algorithm: str

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None = None) -> CleanerConfig:
        """Parse broker settings by Kafka's names, text or typed; other names are ignored. Raises ConfigError."""
        values = CLEANER_CONFIG_DEF.parse(given or {})
        return cls(
            enabled=values["log.cleaner.enable"],
            threads=values["log.cleaner.threads"],
            io_max_bytes_per_second=values["log.cleaner.io.max.bytes.per.second"],
            dedupe_buffer_size=values["log.cleaner.dedupe.buffer.size"],
            io_buffer_size=values["log.cleaner.io.buffer.size"],
            load_factor=values["log.cleaner.io.buffer.load.factor"],
            backoff_ms=values["log.cleaner.backoff.ms"],
            hash_algorithm=values["log.cleaner.hash.algorithm"],
        )

    @property
    def map_bytes_per_thread(self) -> int:
        """Each thread's share of the memory for maps."""
        return max(self.dedupe_buffer_size // self.threads, 64)
