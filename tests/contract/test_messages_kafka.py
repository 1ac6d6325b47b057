"""Tidelog's bytes, errors and header versions against Kafka's own classes, run in a JVM.

Messages with arbitrary values are encoded here, read and written by Kafka, and must come back byte for byte: then both
agree on every field, its place and its default, also where the definitions leave room for reading them wrongly.
"""

from __future__ import annotations

import re

import pytest

from tests.support import kafka_jars
from tests.support.java_tools import run_program
from tests.support.jvm import KAFKA_PROTOCOL
from tests.support.messages import RandomChoices, all_messages, arbitrary, versions
from tidelog.protocol.api_keys import request_header_version, response_header_version
from tidelog.protocol.errors import KafkaError, error_for_code
from tidelog.protocol.schema.fields import Message

SAMPLES = 6  # messages per class and version
JARS = (kafka_jars.KAFKA_4, kafka_jars.KAFKA_3)

pytestmark = pytest.mark.java


def ask_kafka(kafka_version: str, question: str, text: str = "") -> list[str]:
    """Return the Java program's answer, line by line."""
    done = run_program(KAFKA_PROTOCOL, [question], version=kafka_version, stdin=text, timeout_s=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("kafka_version", JARS)
def test_kafka_reads_and_writes_the_same_bytes(kafka_version: str) -> None:
    # 3.9 marks early access as unstable, and 4.x changed it; what 4.3 marks so is declared as it stands.
    question = "headers" if kafka_version == kafka_jars.KAFKA_3 else "all-headers"
    served = {tuple(map(int, line.split()[:2])) for line in ask_kafka(kafka_version, question)}
    samples = [
        (cls, version, arbitrary(cls, version, RandomChoices(seed)).encode(version))
        for cls in all_messages()
        for version in versions(cls.VERSIONS)
        if cls.API_KEY < 0 or (cls.API_KEY, version) in served
        for seed in range(SAMPLES)
    ]
    lines = [f"{_java_name(cls, kafka_version)} {version} {encoded.hex()}\n" for cls, version, encoded in samples]
    answers = ask_kafka(kafka_version, "messages", "".join(lines))
    assert len(answers) == len(samples) > 1000
    for (cls, version, encoded), answer in zip(samples, answers, strict=True):
        assert answer == encoded.hex(), f"{cls.__name__} v{version}"


def _java_name(cls: type[Message], kafka_version: str) -> str:
    name = cls.__name__
    if kafka_version == kafka_jars.KAFKA_3:
        name = name.replace("ListConfigResources", "ListClientMetricsResources")  # key 74 before KIP-1142
    return name if cls.API_KEY < 0 else f"{name}Data"


def test_error_table_is_kafkas() -> None:
    for line in ask_kafka(kafka_jars.KAFKA_4, "errors"):
        code, name, retriable = line.split()
        if name == "NONE":
            continue
        error = error_for_code(int(code))
        assert (error.code, error.retriable) == (int(code), retriable == "true"), name
        camel = "".join(word.capitalize() for word in re.sub("_(EXCEPTION|ERROR)$", "", name).split("_"))
        assert error.__name__ == f"{camel}Error"


def test_error_table_holds_nothing_else() -> None:
    codes = {int(line.split()[0]) for line in ask_kafka(kafka_jars.KAFKA_4, "errors")} - {0}
    assert {cls.code for cls in KafkaError.__subclasses__() if "code" in vars(cls)} == codes


@pytest.mark.parametrize("kafka_version", JARS)
def test_header_versions_are_kafkas(kafka_version: str) -> None:
    for line in ask_kafka(kafka_version, "headers"):
        api_key, version, request, response = map(int, line.split())
        assert (request_header_version(api_key, version), response_header_version(api_key, version)) == (
            request,
            response,
        ), (api_key, version)
