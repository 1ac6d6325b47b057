"""The parser of the output of ``kafka-configs --describe --entity-type topics``.

    Dynamic configs for topic orders are:
      cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact, ...}

Older versions print one line, ``Configs for topic 'orders' are cleanup.policy=compact,retention.ms=1000``; there a
value may contain commas (``cleanup.policy=compact,delete``), so a part without ``=`` belongs to the value before it.
"""

from __future__ import annotations

import re

_TOPIC = re.compile(r"^(?:Dynamic )?[Cc]onfigs for topic '?(?P<topic>[A-Za-z0-9._-]+)'? are:? ?(?P<rest>.*)$")
_ENTRY = re.compile(r"^ +(?P<key>[a-z0-9.]+)=(?P<value>.*?) sensitive=(?:true|false) synonyms=")


def parse_topic_configs(text: str) -> dict[str, dict[str, str]]:
    """Parse each topic's own configs. Other lines are skipped."""
    found: dict[str, dict[str, str]] = {}
    topic: dict[str, str] = {}
    for line in text.splitlines():
        head, entry = _TOPIC.match(line), _ENTRY.match(line)
        if head is not None:
            topic = found.setdefault(head["topic"], {})
            topic.update(_old_list(head["rest"]))
        elif entry is not None:
            topic[entry["key"]] = entry["value"]
    return found


def _old_list(text: str) -> dict[str, str]:
    configs: dict[str, str] = {}
    last = None
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if equals:
            last = key.strip()
            configs[last] = value.strip()
        elif last is not None:
            configs[last] += f",{part.strip()}"
    return configs
