"""Names of virtual topics: each names a topic and selects some of its records.

    orders?key=4711                         records with that key
    orders?tag=paid&from=2026-11-21         records with that tag from that day on; to= sets the last time, inclusive
    orders?key=%F0%9F%8D%8A                 bytes that a name cannot hold are encoded as in a URL

Some clients, such as kafka-python, accept only the characters that Kafka allows in a topic's name. For them there is a
plain form: three dots before each field, a dot before its value, any other byte as ``_x`` and two hex digits:

    orders...key.4711...from.1700000000000        a_x20b is "a b", _x5fx is "_x"

A virtual topic has the partitions of its topic, and an id computed from the topic's id and its own name. The id is the
same after a restart, and another one when the topic was deleted and created again. Each spelling has an id of its own:
a client that asks by id must get the name that it knows. Pure functions.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import unquote_to_bytes

from tidelog.log.find.lookup import MAX_TIME, MIN_TIME, Query
from tidelog.log.find.times import parse_time
from tidelog.protocol.errors import InvalidTopicError

MARK, PLAIN_MARK = "?", "..."
MAX_NAME_LENGTH = 4096
_FIELDS = frozenset({"key", "tag", "from", "to"})
_ESCAPE = re.compile(rb"_x([0-9a-fA-F]{2})")


def split_name(name: str) -> tuple[str, dict[str, bytes]]:
    """Split the name of a virtual topic into topic and fields. Raises InvalidTopicError if it is malformed."""
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidTopicError(f"the name of a virtual topic is longer than {MAX_NAME_LENGTH}")
    if MARK in name:
        topic, _, rest = name.partition(MARK)
        pairs = [part.partition("=") for part in rest.split("&")]
        fields = [(field, unquote_to_bytes(value)) for field, _, value in pairs]
    else:
        topic, *parts = name.split(PLAIN_MARK)
        pairs = [part.partition(".") for part in parts]
        fields = [(field, unescape(value)) for field, _, value in pairs]
    names = [field for field, _ in fields]
    if not topic or not _FIELDS.issuperset(names) or len(set(names)) < len(names):
        raise InvalidTopicError(f"'{name}': expected TOPIC?key=...&tag=...&from=...&to=..., each at most once")
    return topic, dict(fields)


def base_name(name: str) -> str:
    """Return the topic whose ACLs apply to ``name``: for a virtual topic its base, even if the text after ``?`` is
    malformed. A malformed name of the other form, with three dots, is that of an ordinary topic."""
    if MARK in name:
        return name.partition(MARK)[0]
    if PLAIN_MARK not in name:
        return name
    try:
        return split_name(name)[0]
    except InvalidTopicError:  # an ordinary name with three dots in it
        return name


def unescape(text: str) -> bytes:
    """Decode a value of the plain form."""
    return _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode())


def parse_query(fields: dict[str, bytes], tag_header: str | None) -> Query:
    """Return the query that the fields describe. Raises InvalidTopicError."""
    times = {}
    for field, default in (("from", MIN_TIME), ("to", MAX_TIME)):
        try:
            times[field] = parse_time(fields[field].decode()) if field in fields else default
        except ValueError as error:
            raise InvalidTopicError(f"{field}: {error}") from None
    if "tag" in fields and tag_header is None:
        raise InvalidTopicError("the topic has no tags: set index.tag.header on it")
    return Query(fields.get("key"), fields.get("tag"), tag_header, times["from"], times["to"])


def virtual_id(name: str, topic_id: bytes) -> bytes:
    """Return the id of the virtual topic ``name`` of the topic with this id."""
    return hashlib.sha256(topic_id + name.encode()).digest()[:16]
