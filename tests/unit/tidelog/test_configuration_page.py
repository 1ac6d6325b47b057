from __future__ import annotations

from pathlib import Path

from tidelog.broker.config.broker_config import BROKER_CONFIG_DEF
from tidelog.configuration_page import default_of, page
from tidelog.log.config import TOPIC_CONFIG_DEF
from tidelog.protocol.config_def import ConfigKey, ConfigType

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_is_generated_from_the_tables() -> None:
    made = "python -m tidelog.configuration_page > docs/configuration.md"
    assert PAGE.read_text() == page(), f"docs/configuration.md is out of date; make it with: {made}"


def test_every_key_is_on_the_page() -> None:
    text = page()
    for key in (*BROKER_CONFIG_DEF, *TOPIC_CONFIG_DEF):
        assert f"`{key.name}`" in text


def test_rows_are_whole() -> None:
    for line in page().splitlines():
        if line.startswith("| `"):
            assert line.count("|") == 7, line


def test_defaults_as_they_stand_in_a_file() -> None:
    assert default_of(ConfigKey("a", ConfigType.BOOLEAN, True)) == "`true`"
    assert default_of(ConfigKey("a", ConfigType.LIST, ("x", "y"))) == "`x,y`"
    assert default_of(ConfigKey("a", ConfigType.STRING, None)) == ""
    assert default_of(ConfigKey("a", ConfigType.STRING)) == "must be given"
