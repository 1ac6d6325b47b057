"""First users of a lone node: ``tidelog format --add-scram``, and the first start, which stores them once."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faulty_file_system import FaultyFileSystem, Killed
from tidelog.broker.cluster_membership import check_is_alone
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.controller.clients.scram_credentials import ScramCredentials, ScramMechanism, derive
from tidelog.broker.controller.embedded import EmbeddedController
from tidelog.broker.controller.features import first_level, first_levels, supported_features
from tidelog.broker.metadata.bootstrap import BOOTSTRAP_FILE, read_bootstrap, write_bootstrap
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY, read_batches
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE
from tidelog.broker.startup import ClaimedDirectories, build_controller, log_manager_of
from tidelog.cli import main
from tidelog.commands.files.format import FirstRecords, format_directories
from tidelog.commands.frame.scram import parse_first_user
from tidelog.log.files.checkpoints import read_meta_properties
from tidelog.log.system.file_system import FileSystem, OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.metadata_records.frames import decode_metadata_record
from tidelog.protocol.metadata_records.records import FeatureLevelRecord, TopicRecord, UserScramCredentialRecord

CLUSTER = "5L6g3nShT-eMCtK--X86sw"
SALT = b"a salt of some length"
BASE64 = base64.b64encode(SALT).decode()
ADMIN = f"SCRAM-SHA-512=[name=admin,password=secret,salt={BASE64}]"
KEY = ("admin", ScramMechanism.SCRAM_SHA_512)
SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


def salted(mechanism: ScramMechanism, password: str = "secret", iterations: int = 4096) -> bytes:
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), SALT, iterations)


SALTED = base64.b64encode(salted(SHA_256, iterations=8192)).decode()


@pytest.mark.parametrize(
    ("argument", "name", "mechanism", "password", "iterations"),
    [
        ("SCRAM-SHA-256=[name=a,password=b,salt={}]", "a", SHA_256, "b", 4096),
        (" SCRAM-SHA-512=[password=b,salt={},name=a] ", "a", SHA_512, "b", 4096),
        ('SCRAM-SHA-512=[name="a",password="b",salt="{}",iterations="8192"]', "a", SHA_512, "b", 8192),
        ("SCRAM-SHA-256=[name=a b,password=b=c]d[,salt={},iterations=16384]", "a b", SHA_256, "b=c]d[", 16384),
        ("SCRAM-SHA-256=[name=ä,password=пароль,salt={},,]", "ä", SHA_256, "пароль", 4096),
        ('SCRAM-SHA-256=[name=a,password=",salt={}]', "a", SHA_256, '"', 4096),
        ("SCRAM-SHA-256=[name=a,name=b,password=x,password=y,salt={}]", "b", SHA_256, "y", 4096),
        (f"SCRAM-SHA-256=[name=a,saltedpassword={SALTED},salt={{}},iterations=8192]", "a", SHA_256, "secret", 8192),
        (f"SCRAM-SHA-256=[name=a,password=b,saltedpassword={SALTED},salt={{}}]", "a", SHA_256, "b", 4096),
    ],
)
def test_the_grammar_is_kafkas(
    argument: str, name: str, mechanism: ScramMechanism, password: str, iterations: int
) -> None:
    for salt in (BASE64, BASE64.rstrip("=")):
        user = parse_first_user(argument.format(salt))
        keys = derive(mechanism, iterations, SALT, salted(mechanism, password, iterations))
        assert user.record == VersionedRecord(
            UserScramCredentialRecord(
                name=name, mechanism=mechanism, salt=SALT, stored_key=keys.stored_key, server_key=keys.server_key,
                iterations=iterations,
            )
        )  # fmt: skip


def test_a_salt_that_is_not_given_is_random(tmp_path: Path) -> None:
    argument = "SCRAM-SHA-256=[name=a,password=b]"
    salts = {parse_first_user(argument).record.record.salt for _ in range(3)}  # type: ignore[attr-defined]
    assert {len(salt) for salt in salts} == {24}
    assert len(salts) == 3


@pytest.mark.parametrize("content", ["se,cret", "se,cret\n", "se,cret\r\n", "se,cret\nmore\n"])
def test_a_password_comes_from_a_files_first_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "password"
    path.write_bytes(content.encode())
    found = parse_first_user(f"SCRAM-SHA-256=[name=a,password-file={path},salt={BASE64}]").record
    keys = derive(SHA_256, 4096, SALT, salted(SHA_256, "se,cret"))
    assert found.record.stored_key == keys.stored_key  # type: ignore[attr-defined]


class Node:
    """A lone node, formatted and started as far as its metadata go."""

    def __init__(self, directory: Path, **texts: str) -> None:
        self.data = directory / "data"
        self.file = directory / "server.properties"
        given = {"node.id": "4", "log.dirs": str(self.data), **{k.replace("_", "."): v for k, v in texts.items()}}
        self.file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        self.config = BrokerConfig.load(str(self.file))

    def format(self, *arguments: str, more: tuple[str, ...] = ()) -> int:
        users = [word for argument in arguments for word in ("--add-scram", argument)]
        return main(["format", "-t", CLUSTER, "-c", str(self.file), *users, *more])

    def start(self, file_system: FileSystem | None = None) -> EmbeddedController:
        file_system, time = file_system or OsFileSystem(), ManualTime()
        known = check_is_alone(self.config, file_system)
        manager = log_manager_of(self.config, file_system, time, ClaimedDirectories(CLUSTER, [], {}))
        return build_controller(manager, self.config.node_id, time, known)

    def credentials(self) -> Iterator[UserScramCredentialRecord]:
        """Yield the records of the log that add users."""
        for path in sorted((self.data / METADATA_DIRECTORY).glob("*.log")):
            for batch in read_batches(OsFileSystem(), str(path)):
                for record in () if batch.is_control else batch.records():
                    message = decode_metadata_record(record.value or b"")
                    if isinstance(message, UserScramCredentialRecord):
                        yield message


def test_the_first_start_adds_the_users_and_no_later_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node(tmp_path)
    bob = "SCRAM-SHA-256=[name=bob,password=other,iterations=8192]"
    assert node.format(ADMIN.replace("secret", "replaced"), bob, ADMIN) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == [
        "user admin has a password for SCRAM-SHA-512 from the first start on",
        "user bob has a password for SCRAM-SHA-256 from the first start on",
    ]
    controller = node.start()
    users = ScramCredentials(controller)
    assert users.users() == {"admin": {SHA_512: 4096}, "bob": {SHA_256: 8192}}
    assert users.get(*KEY) == derive(SHA_512, 4096, SALT, salted(SHA_512))
    assert controller.image.features == {
        record.record.name: record.record.feature_level  # type: ignore[attr-defined]
        for record in first_levels(EMPTY_IMAGE)
    }
    users.delete("bob", SHA_256)
    controller.close()
    for _ in range(2):
        controller = node.start()
        assert ScramCredentials(controller).users() == {"admin": {SHA_512: 4096}}
        assert controller.take_snapshot(0)
        controller.close()
    assert (node.data / BOOTSTRAP_FILE).exists()


def test_a_start_without_users_begins_with_the_same_levels(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.format() == 0
    formatted = node.start()
    other = Node(tmp_path, log_dirs=str(tmp_path / "other")).start()
    assert formatted.image.features == other.image.features
    assert not formatted.image.scram
    formatted.close()
    other.close()


def test_a_format_that_is_killed_is_no_format(tmp_path: Path) -> None:
    """At each write: the next format succeeds, and the start has its users alone."""
    steps = 0
    while True:
        directory = tmp_path / str(steps)
        (directory / "data").mkdir(parents=True)
        node = Node(directory)
        disk = FaultyFileSystem(str(node.data))
        disk.kill_at = steps
        user = [parse_first_user(ADMIN.replace("admin", "former"))]
        try:
            format_directories(disk, node.config, CLUSTER, FirstRecords(users=user), ignore_formatted=False)
        except Killed:
            disk.crash()
        else:
            break
        assert read_meta_properties(OsFileSystem(), str(node.data)) is None
        assert node.format(ADMIN) == 0
        controller = node.start()
        assert list(ScramCredentials(controller).users()) == ["admin"]
        controller.close()
        steps += 1
    assert steps > 4


@pytest.mark.parametrize("first_step", range(3))
@pytest.mark.parametrize("power_loss", [False, True])
def test_a_first_start_that_is_killed_adds_the_users_once(tmp_path: Path, power_loss: bool, first_step: int) -> None:
    """At each write, and with what a power loss leaves of it: the next start has the user, with one record."""
    assert Node(tmp_path).format(ADMIN) == 0
    steps = first_step
    while True:
        directory = tmp_path / str(steps)
        shutil.copytree(tmp_path / "data", directory / "data")
        node = Node(directory)
        disk = FaultyFileSystem(str(node.data), seed=steps)
        disk.kill_at = steps
        try:
            node.start(disk).sync()
        except Killed:
            if power_loss:
                disk.crash(torn=True)
        else:
            break
        for _ in range(2):
            controller = node.start()
            assert list(controller.image.scram) == [KEY]
            controller.close()
        assert [record.name for record in node.credentials()] == ["admin"]
        steps += 3
    assert steps > 4


WRONG = [
    ("", "expected SCRAM-SHA-256=[...] or SCRAM-SHA-512=[...]"),
    ("SCRAM-SHA-512", "expected SCRAM-SHA-256=[...]"),
    ("scram-sha-512=[name=a,password=sesame]", "expected SCRAM-SHA-256=[...]"),
    ("SCRAM-SHA-1=[name=a,password=sesame]", "expected SCRAM-SHA-256=[...]"),
    ("SCRAM-SHA-512=name=a,password=sesame", "[ and ]"),
    ("SCRAM-SHA-512=[name=a,password=sesame", "[ and ]"),
    ("SCRAM-SHA-512=[", "[ and ]"),
    ("SCRAM-SHA-512=[]", "equals sign"),
    ("SCRAM-SHA-512=[name=a,password=ses,ame]", "use password-file"),
    ("SCRAM-SHA-512=[password=sesame]", "needs a name"),
    ("SCRAM-SHA-512=[name=,password=sesame]", "needs a name"),
    ("SCRAM-SHA-512=[name=a]", "needs a password"),
    ("SCRAM-SHA-512=[name=a,password=]", "password is empty"),
    ('SCRAM-SHA-512=[name=a,password=""]', "password is empty"),
    ("SCRAM-SHA-512=[name=a,password=sesame,iterations=4095]", "iterations from 4096 to 16384"),
    ("SCRAM-SHA-512=[name=a,password=sesame,iterations=16385]", "iterations from 4096 to 16384"),
    ("SCRAM-SHA-512=[name=a,password=sesame,iterations=many]", "iterations from 4096 to 16384"),
    ("SCRAM-SHA-512=[name=a,password=sesame,iterations=5_000]", "iterations from 4096 to 16384"),
    ("SCRAM-SHA-512=[name=a,password=sesame,iterations=]", "iterations from 4096 to 16384"),
    ("SCRAM-SHA-512=[name=a,password=sesame,salt=%]", "base64 as salt"),
    ("SCRAM-SHA-512=[name=a,password=sesame,salt=]", "base64 as salt"),
    ("SCRAM-SHA-512=[name=a,password=sesame,salt=ä]", "base64 as salt"),
    (f"SCRAM-SHA-256=[name=a,saltedpassword={SALTED}]", "needs its salt"),
    (f"SCRAM-SHA-256=[name=a,saltedpassword=%,salt={BASE64}]", "base64 as saltedpassword"),
    (f"SCRAM-SHA-512=[name=a,saltedpassword={SALTED},salt={BASE64}]", "has 32 bytes, expected 64"),
    ("SCRAM-SHA-512=[name=a,password=sesame,size=3]", "a key is unknown, expected iterations, name, password"),
    ("SCRAM-SHA-512=[name=a, password=sesame]", "a key is unknown"),
    ("SCRAM-SHA-512=[name=a,password=ses,ame=]", "use password-file"),
    ("SCRAM-SHA-512=[name=a,password=sesame,password-file=b]", "not both"),
    ("SCRAM-SHA-512=[name=a,password-file=/nowhere/b]", "/nowhere/b cannot be read: No such file"),
    ("SCRAM-SHA-512=[name=\udce4,password=sesame]", "not UTF-8"),
]


@pytest.mark.parametrize(("argument", "message"), WRONG)
def test_a_wrong_argument_is_reported_in_one_line_without_the_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argument: str, message: str
) -> None:
    node = Node(tmp_path)
    assert node.format(ADMIN, argument) == 2
    error = capsys.readouterr().err
    assert error.startswith("tidelog format: --add-scram: ")
    assert message in error
    assert error.count("\n") == 1
    assert "ame" not in error.replace("name", "")
    assert not node.data.exists()


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "password is empty"), (b"\nx", "password is empty"), (b"\xff", "not UTF-8")]
)
def test_a_wrong_password_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    node = Node(tmp_path)
    (tmp_path / "password").write_bytes(content)
    assert node.format(f"SCRAM-SHA-512=[name=a,password-file={tmp_path / 'password'}]") == 2
    assert message in capsys.readouterr().err
    assert not node.data.exists()


@pytest.mark.parametrize("roles", ["broker", "controller"])
def test_a_member_gets_its_users_from_the_controllers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], roles: str
) -> None:
    node = Node(tmp_path, process_roles=roles)
    assert node.format(ADMIN) == 1
    error = capsys.readouterr().err
    assert f"process.roles={roles}: this option is for the format of the cluster's controllers\n" in error
    assert error.count("\n") == 1
    assert not node.data.exists()
    assert node.format() == 0
    assert not (node.data / BOOTSTRAP_FILE).exists()


@pytest.mark.parametrize(
    ("release", "levels"),
    [
        ("3.9", {"metadata.version": 21}),
        ("4.0-IV0", {"metadata.version": 22, "group.version": 1}),
        ("4.0", {"metadata.version": 25, "group.version": 1, "transaction.version": 2}),
        ("4.1", {"metadata.version": 27, "group.version": 1, "transaction.version": 2}),
        ("4.2-IV0", {"metadata.version": 28, "group.version": 1, "transaction.version": 2, "share.version": 1}),
        ("4.3", {name: first_level(name) for name in supported_features()} | {"metadata.version": 30}),
    ],
)
def test_the_first_levels_are_those_of_the_release_that_is_named(
    tmp_path: Path, release: str, levels: dict[str, int]
) -> None:
    node = Node(tmp_path)
    assert node.format(ADMIN, more=("--release-version", release)) == 0
    for _ in range(2):
        controller = node.start()
        assert controller.image.features == levels
        assert list(controller.image.scram) == [KEY]
        controller.close()


@pytest.mark.parametrize("release", ["3.8", "4.4", "4", "4.0-IV4", "4.0-", "", "latest"])
def test_a_release_that_is_not_known_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], release: str
) -> None:
    node = Node(tmp_path)
    assert node.format(more=("--release-version", release)) == 2
    error = capsys.readouterr().err
    assert f"--release-version: {release!r} is not one of 3.9-IV0, " in error
    assert error.count("\n") == 1
    assert not node.data.exists()


def test_a_member_and_a_used_directory_take_no_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Node(tmp_path, process_roles="broker").format(more=("-r", "4.1")) == 1
    assert "--release-version: process.roles=broker: this option is for" in capsys.readouterr().err
    node = Node(tmp_path)
    assert node.format() == 0
    assert node.format(more=("-r", "4.1", "--ignore-formatted")) == 1
    assert "--release-version: " in capsys.readouterr().err


def test_a_combined_node_is_a_lone_node(tmp_path: Path) -> None:
    node = Node(tmp_path, process_roles="broker,controller")
    assert node.format(ADMIN) == 0
    controller = node.start()
    assert list(controller.image.scram) == [KEY]
    controller.close()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "meta.properties exists"),
        (("--ignore-formatted",), "formatted already; users and levels are changed in the running"),
    ],
)
def test_a_formatted_directory_gets_no_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    node = Node(tmp_path)
    assert node.format() == 0
    before = (node.data / BOOTSTRAP_FILE).read_bytes()
    capsys.readouterr()
    other = Node(tmp_path, log_dirs=f"{node.data},{tmp_path / 'second'}")
    assert other.format(ADMIN, more=more) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (node.data / BOOTSTRAP_FILE).read_bytes() == before
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("used", [METADATA_DIRECTORY, "metadata.sqlite"])
def test_a_used_directory_gets_no_users(tmp_path: Path, capsys: pytest.CaptureFixture[str], used: str) -> None:
    """Its metadata log has begun: the start would not read the file."""
    node = Node(tmp_path)
    (node.data / used).mkdir(parents=True)
    assert node.format(ADMIN) == 1
    error = capsys.readouterr().err
    assert f"{node.data} has been used already" in error
    assert error.count("\n") == 1
    assert os.listdir(node.data) == [used]
    assert node.format() == 0
    assert not (node.data / BOOTSTRAP_FILE).exists()


def test_the_first_directory_alone_has_the_users(tmp_path: Path) -> None:
    node = Node(tmp_path, log_dirs=f"{tmp_path / 'data'},{tmp_path / 'second'}")
    assert node.format(ADMIN) == 0
    assert (tmp_path / "data" / BOOTSTRAP_FILE).exists()
    assert not (tmp_path / "second" / BOOTSTRAP_FILE).exists()


def test_only_the_owner_reads_the_keys(tmp_path: Path) -> None:
    """Under any umask, and with what a killed run left."""
    node = Node(tmp_path, log_dirs_mode="0755")
    node.data.mkdir()
    (node.data / f"{BOOTSTRAP_FILE}.tmp").write_bytes(b"half")
    (node.data / f"{BOOTSTRAP_FILE}.tmp").chmod(0o644)
    mask = os.umask(0)
    try:
        assert node.format(ADMIN) == 0
        assert os.umask(0) == 0
    finally:
        os.umask(mask)
    assert stat.S_IMODE((node.data / BOOTSTRAP_FILE).stat().st_mode) == 0o600


def test_a_file_that_is_not_whole_stops_the_start(tmp_path: Path) -> None:
    """Cut or changed at any byte, it is refused or still says the same: no node begins without its users."""
    node = Node(tmp_path)
    assert node.format(ADMIN) == 0
    path = node.data / BOOTSTRAP_FILE
    whole, results = path.read_bytes(), []
    for size in range(0, len(whole), 7):
        for content in (whole[:size], whole[:size] + bytes([whole[size] ^ 0x55]) + whole[size + 1 :]):
            path.write_bytes(content)
            results.append(users_or_refusal(node.data))
    assert set(results) == {"admin", "refused"}
    assert results.count("refused") > len(results) * 0.8


def users_or_refusal(directory: Path) -> str:
    try:
        image = read_bootstrap(OsFileSystem(), str(directory))
    except KafkaStorageError:
        return "refused"
    return "" if image is None else ",".join(name for name, _ in image.scram)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([FeatureLevelRecord(name="metadata.version", feature_level=99)], "metadata.version is at level 99"),
        ([FeatureLevelRecord(name="group.version", feature_level=1)], "has no record of metadata.version"),
        ([TopicRecord(name="t", topic_id=b"t" * 16)], "has no record of metadata.version"),
    ],
)
def test_an_unsupported_configuration_is_refused(
    tmp_path: Path, records: list[FeatureLevelRecord], message: str
) -> None:
    node = Node(tmp_path)
    assert node.format() == 0
    write_bootstrap(OsFileSystem(), str(node.data), [VersionedRecord(record) for record in records], 0)
    for _ in range(2):
        with pytest.raises(KafkaStorageError, match=f"{BOOTSTRAP_FILE}.*{message}"):
            node.start()
