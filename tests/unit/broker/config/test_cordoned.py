"""Cordoned log directories: which ones a configuration names."""

from __future__ import annotations

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.protocol.config_def import ConfigError


@pytest.mark.parametrize(("text", "cordoned"), [("", []), ("/c", ["/c"]), ("/c,/b", ["/b", "/c"]), ("*", ["/b", "/c"])])
def test_cordoned_directories(text: str, cordoned: list[str]) -> None:
    config = BrokerConfig({"log.dirs": "/b,/c", "cordoned.log.dirs": text})
    assert config.cordoned_log_dirs == cordoned


@pytest.mark.parametrize("text", ["/d", "/b,*"])
def test_only_own_directories_are_cordoned(text: str) -> None:
    with pytest.raises(ConfigError, match=r"cordoned\.log\.dirs.*directories of log\.dirs"):
        BrokerConfig({"log.dirs": "/b,/c", "cordoned.log.dirs": text})


def test_a_directory_that_is_gone_is_cordoned_no_more() -> None:
    """The cluster's metadata may name a directory that log.dirs no longer has: the broker starts."""
    config = BrokerConfig({"log.dirs": "/b,/c"})
    config.set_dynamic({"cordoned.log.dirs": "/a,/c"})
    assert config.cordoned_log_dirs == ["/c"]
