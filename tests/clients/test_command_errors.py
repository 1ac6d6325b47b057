"""Wrong input of the commands: each error is one line that names what was wrong, with the right exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.support.broker import TidelogProcess
from tests.support.shell import Shell
from tidelog.broker_process import clean_environment
from tidelog.cli import main

FAILED, USAGE = 1, 2
NOT_UTF8 = os.fsdecode(b"\xff")
TOO_LARGE = 2_000_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    """A broker, shared by the tests of this module."""
    with TidelogProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture
def shell(served: TidelogProcess, capsys: pytest.CaptureFixture[str]) -> Shell:
    shell = Shell(served.bootstrap, capsys)
    shell.text("topic", "create", "orders", "--if-not-exists", "-p", "3", "-c", "index.keys=true")
    return shell


def failure(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> str:
    """Return the only line that a failing command prints to standard error."""
    ended = main(words)
    lines = capsys.readouterr().err.splitlines()
    assert (ended, len(lines)) == (code, 1), lines
    return lines[0]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("topic create t -p 99999999999999", USAGE, "'--partitions': 99999999999999 is not in the range"),
        ("topic create t -r 99999999999", USAGE, "'--replicas': 99999999999 is not in the range"),
        ("topic add-partitions orders -n 2147483647", FAILED, "field topics.count"),
        (f"topic create {NOT_UTF8}", FAILED, "field topics.name: 'utf-8'"),
        (f"topic describe {NOT_UTF8}", FAILED, "field topics.name: 'utf-8'"),
        (f"compaction run {NOT_UTF8}", USAGE, "TOPIC is not UTF-8"),
        ("topic alter orders --delete-config no.such.key", FAILED, "topic orders has no configuration no.such.key"),
        ("config unset topic orders no.such.key", FAILED, "topic orders has no configuration no.such.key"),
        ("config unset broker 1 no.such.key", FAILED, "broker 1 has no configuration no.such.key"),
        ("group list --state Foo", USAGE, "'Foo' is not one of 'preparingrebalance', 'completingrebalance'"),
        ("group list --type foo", USAGE, "'foo' is not one of 'classic', 'consumer', 'share', 'streams'"),
        ("group reset none --all-topics --to-latest", FAILED, "group none has no committed offsets"),
        ("group reset g --topic orders --to-datetime foo", USAGE, "'--to-datetime': 'foo' is not a time: expected"),
        ("transaction list --state Foo", USAGE, "'Foo' is not one of 'empty', 'ongoing'"),
        ("consume orders --from foo", USAGE, "'--from': 'foo' is not a time: expected milliseconds"),
        ("consume orders --to foo", USAGE, "'--to': 'foo' is not a time: expected milliseconds"),
        ("find orders --key 1 --from foo", USAGE, "'--from': 'foo' is not a time: expected milliseconds"),
        ("user create ann --password a --password-stdin", USAGE, "expected one of --password and --password-stdin"),
        ("produce orders --registry http://127.0.0.1:1", USAGE, "expected --value-format with them"),
        ("consume orders --registry-property a=b", USAGE, "expected --value-format with them"),
        ("produce orders /none", FAILED, "tidelog produce: /none: No such file or directory"),
        ("produce orders --value-format avro --registry http://u:p@127.0.0.1:1", FAILED, "registry 127.0.0.1:1, sub"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(shell: Shell, words: str, code: int, message: str) -> None:
    assert message in shell.failure(*words.split(), code=code)


def test_topics_that_are_there_are_described_beside_one_that_is_not(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "describe", "none", "orders", "--bootstrap", shell.bootstrap]) == FAILED
    out, message = capsys.readouterr()
    assert out.startswith("name: orders\n")
    assert message == "tidelog topic describe: topic none: This broker has no such topic or partition.\n"


@pytest.mark.parametrize("bootstrap", ["", ",", "127.0.0.1", "h:x", "::1:9092", "h:0", "h:1,h:x"])
def test_an_address_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str], bootstrap: str) -> None:
    message = failure(capsys, "topic", "list", "--bootstrap", bootstrap, code=USAGE)
    assert message.startswith("tidelog topic list: --bootstrap '")


def test_the_variable_of_a_wrong_address_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", "h")
    assert "TIDELOG_BOOTSTRAP 'h': expected HOST:PORT" in failure(capsys, "topic", "list", code=USAGE)


def test_an_address_may_have_a_listeners_name(served: TidelogProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ping", "--bootstrap", f"PLAINTEXT://{served.bootstrap}"]) == 0


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (b"bootstrap.servers=h", "bootstrap.servers 'h': expected HOST:PORT"),
        (b"security.protocol=FOO", "security.protocol=FOO: expected PLAINTEXT"),
        (b"\xff", "expected properties in UTF-8"),
        (b"security.protocol=SASL_PLAINTEXT", "sasl.mechanism is missing"),
    ],
)
def test_a_wrong_profile_is_wrong_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, profile: bytes, message: str
) -> None:
    path = tmp_path / "client.properties"
    path.write_bytes(profile)
    assert message in failure(capsys, "topic", "list", "--profile", str(path), code=USAGE)
    directory = failure(capsys, "topic", "list", "--profile", str(tmp_path), code=USAGE)
    assert directory == f"tidelog topic list: profile {tmp_path}: Is a directory"


@pytest.mark.parametrize("store", ["ssl.truststore.location", "ssl.keystore.location"])
def test_a_store_that_cannot_be_read_is_named(served: TidelogProcess, shell: Shell, tmp_path: Path, store: str) -> None:
    profile, broken = tmp_path / "client.properties", tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for path in (tmp_path / "none.pem", broken):
        profile.write_text(f"security.protocol=SSL\n{store}={path}\n")
        message = shell.failure("topic", "list", "--profile", str(profile), code=USAGE)
        assert message.startswith(f"tidelog topic list: {store}={path}: ")


def test_a_broker_that_is_away_is_reported_without_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    message = failure(capsys, "topic", "list", "--bootstrap", "127.0.0.1:1", code=FAILED)
    assert message == "tidelog topic list: cannot connect to 127.0.0.1:1: Connection refused"


def test_another_security_protocol_is_suggested(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with tidelog.Broker(security=tidelog.Security()) as broker:
        message = failure(capsys, "topic", "list", "--bootstrap", broker.bootstrap, code=FAILED)
        assert message.endswith("does this listener expect another security.protocol than PLAINTEXT (--profile)?")
        find = ["find", "orders", "--key", "1", "--bootstrap", broker.bootstrap]
        assert "expect another security.protocol" in failure(capsys, *find, code=FAILED)
    profile = tmp_path / "client.properties"
    profile.write_text("security.protocol=SSL\n")
    with tidelog.Broker() as broker:
        words = ["topic", "list", "--bootstrap", broker.bootstrap, "--profile", str(profile)]
        assert failure(capsys, *words, code=FAILED).endswith("does this listener have TLS (security.protocol=SSL)?")


def test_a_login_of_the_admin_interface_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with tidelog.Broker({"admin.listener": "127.0.0.1:0", "admin.authentication": "basic"}) as broker:
        for command in (["find", "orders", "--key", "1"], ["compaction", "status"]):
            message = failure(capsys, *command, "--bootstrap", broker.bootstrap, code=FAILED)
            assert "requires a login: expected a profile with security.protocol=SASL_" in message


def test_times_before_1970_are_no_special_times(shell: Shell, tmp_path: Path) -> None:
    """ListOffsets takes -1 for the end of a log, and other negative numbers for nothing or other places."""
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    shell.text("topic", "create", "old")
    shell.text("produce", "old", str(lines))
    for moment in ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.998Z", "99999d"):
        assert shell.text("consume", "old", "--from", moment, "--format", "value") == "one\n"
        assert shell.text("consume", "old", "--to", moment, "--format", "value") == ""
        rows = shell.json("group", "reset", "g", "--topic", "old", "--to-datetime", moment, "--dry-run")
        assert [row["offset"] for row in rows["partitions"]] == [0]
    assert shell.text("consume", "old", "--to", str(2**63 - 1), "--format", "value") == "one\n"


def test_keys_that_are_not_utf8_are_found(shell: Shell, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    shell.text("produce", "orders", str(lines), "--key", NOT_UTF8, "--header", f"a={NOT_UTF8}")
    (record,) = map(str.rstrip, shell.text("find", "orders", "--key", NOT_UTF8, "--json").splitlines())
    assert '"key_base64": "/w=="' in record
    assert '"value_base64": "/w=="' in record


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f'{{"value": "a", "timestamp": {2**63}}}', f"timestamp: {2**63} is not a number from 0 to {2**63 - 1}"),
        (f'{{"value": "a", "partition": {2**31}}}', f"partition: {2**31} is not a number from 0 to {2**31 - 1}"),
        ('{"value": "a\\ud800"}', "value: '\\ud800' is half of a character"),
        ('{"key": "\\ud800"}', "key: '\\ud800' is half of a character"),
        ('{"value": ["\\ud800"]}', "value: '\\ud800' is half of a character"),
        ('{"headers": [{"name": "\\ud800"}]}', "headers: '\\ud800' is half of a character"),
    ],
)
def test_json_that_no_record_can_be_made_of(shell: Shell, tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "lines"
    path.write_text(f'{{"value": "before"}}\n{line}\n')
    assert f"{path} line 2: {message}" in shell.failure("produce", "orders", str(path), "--format", "json")


def test_a_batch_above_the_topics_limit_is_sent_in_parts(shell: Shell, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(1000)))
    shell.text("topic", "create", "narrow", "-c", "max.message.bytes=2000")
    assert shell.text("produce", "narrow", str(lines)) == "narrow-0: 1000 records, offset 0 to 999\n"
    assert shell.text("consume", "narrow", "--format", "value") == lines.read_text()


def test_records_before_one_that_is_too_large_are_written(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines"
    path.write_text("first\nsecond\n" + "a" * TOO_LARGE + "\nlast\n")
    shell.text("topic", "create", "large")
    assert main(["produce", "large", str(path), "--bootstrap", shell.bootstrap]) == FAILED
    out, message = capsys.readouterr()
    assert out == "large-0: 2 records, offset 0 to 1\n"
    assert f"the record that begins with {'a' * 40!r}: The record batch size" in message


@pytest.mark.parametrize(
    ("words", "closed", "message"),
    [
        (["produce", "orders"], "<&-", "tidelog produce: standard input is closed"),
        (["user", "create", "ann", "--password-stdin"], "<&-", "tidelog user create: standard input is closed"),
        (["user", "create", "ann"], "</dev/null", "tidelog user create: no terminal to ask for the password: expected"),
        (["consume", "orders"], ">&-", "tidelog: standard output is closed"),
        (["topic", "list"], ">&-", "tidelog: standard output is closed"),
        (["topic", "create", "unseen"], ">&-", "tidelog: standard output is closed"),
    ],
)
def test_closed_standard_streams_are_reported(shell: Shell, words: list[str], closed: str, message: str) -> None:
    command = [sys.executable, "-I", "-m", "tidelog", *words, "--bootstrap", shell.bootstrap]
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=60,
        start_new_session=True,  # without a terminal
        check=False,
    )
    (line,) = ended.stderr.splitlines()
    assert line.startswith(message)
    assert ended.returncode in (FAILED, USAGE)
    assert "unseen" not in shell.text("topic", "list")


def test_tokens_are_added_only_to_a_file_of_tokens(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tokens, other = tmp_path / "tokens", tmp_path / "other"
    tokens.write_text("# mine")
    create = ("admin", "token", "create", "--user", "ann", "--file")
    assert main([*create, str(tokens)]) == main([*create, str(tokens)]) == 0
    capsys.readouterr()
    assert [line.split()[1] for line in tokens.read_text().splitlines()] == ["mine", "ann", "ann"]
    for content in (b"\x7fELF\xff", b"listeners=PLAINTEXT://:9092\n"):
        other.write_bytes(content)
        assert "it has lines that are not tokens" in failure(capsys, *create, str(other), code=USAGE)
        assert other.read_bytes() == content
    assert "--user" in failure(capsys, "admin", "token", "create", "--user", "", "--file", str(tokens), code=USAGE)
