"""Only the owner reads a broker's files, under any umask, unless ``log.dirs.mode`` says so."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerError, TidelogProcess
from tests.support.power.waiting import wait_until
from tests.support.raw_requests import commit_offset, create, produced
from tidelog.log.directories.names import METADATA_DIRECTORY

CONFIGS: tuple[dict[str, str], ...] = (
    {"flush_messages": "1"},
    {"segment_bytes": "2000"},
    {"index_keys": "true", "index_tag_header": "kind"},
    {"cleanup_policy": "compact", "segment_bytes": "2000"},
)


KINDS = {".log", ".index", ".timeindex", ".snapshot", ".reserve", ".properties", METADATA_DIRECTORY}
"""Some of the suffixes and names that each check must find."""


class MaskedProcess(TidelogProcess):
    """A broker that is started with a umask."""

    mask = "022"

    def command(self) -> list[str]:
        return ["sh", "-c", f'umask {self.mask}; exec "$@"', "sh", *super().command()]


def modes(directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield what lies below a directory; a running broker renames its temporary files meanwhile."""
    for root, _, names in os.walk(directory):
        for path in (Path(root), *(Path(root, name) for name in names)):
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            yield path, stat.S_IMODE(found.st_mode)


def work(broker: TidelogProcess) -> None:
    """Make files of many kinds: segments, indices, producer snapshots, committed offsets, checkpoints, the metadata
    log, the reserve."""
    for number, configs in enumerate(CONFIGS):
        create(broker.port, f"t{number}", 1, **configs)
        for _ in range(20):
            assert produced(broker.port, f"t{number}", bytes(300))[0] == 0
    wait_until(lambda: commit_offset(broker.port, "group", "t0", 1) == 0)


@pytest.mark.parametrize(
    ("mask", "mode", "directory_mode"),
    [("000", None, 0o700), ("022", None, 0o700), ("077", "0750", 0o750), ("777", "755", 0o755)],
)
def test_everything_has_the_mode_that_is_configured(
    tmp_path: Path, mask: str, mode: str | None, directory_mode: int
) -> None:
    broker = MaskedProcess(tmp_path, {"log.dirs.mode": mode} if mode else {})
    broker.mask = mask
    with broker:
        work(broker)
        check(broker.data_directory, directory_mode)
        broker.terminate()
        check(broker.data_directory, directory_mode)
        broker.start()
        check(broker.data_directory, directory_mode)


def check(directory: Path, directory_mode: int) -> None:
    found = set()
    for path, mode in modes(directory):
        expected = directory_mode if path.is_dir() else directory_mode & 0o644
        if path.name == METADATA_DIRECTORY:  # SCRAM keys are in it
            expected = 0o700
        assert oct(mode) == oct(expected), path
        found.add(path.name if path.is_dir() else path.suffix or path.name)
    assert found >= KINDS, KINDS - found
    assert any(name.startswith("__consumer_offsets-") for name in found)


def test_existing_files_keep_their_modes_except_for_secrets(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path) as broker:
        work(broker)
        broker.kill()
        for path, _ in modes(broker.data_directory):
            path.chmod(0o755 if path.is_dir() else 0o644)
        before = dict(modes(broker.data_directory))
        broker.start()
        after = dict(modes(broker.data_directory))
        for path in before.keys() & after.keys():
            secret = path.name == METADATA_DIRECTORY
            rewritten = not path.is_dir() and path.name.endswith(
                ("-checkpoint", ".snapshot", ".reserve", "quorum-state")
            )
            if secret or not rewritten:
                assert oct(after[path]) == oct(0o700 if secret else before[path]), path


@pytest.mark.parametrize("mode", ["0600", "0077", "800", "rwx", "1700", "", "07000"])
def test_a_mode_that_is_not_0700_to_0777_is_refused(tmp_path: Path, mode: str) -> None:
    broker = TidelogProcess(tmp_path, {"log.dirs.mode": mode})
    with pytest.raises(BrokerError, match="an octal mode from 0700 to 0777"), broker:
        pass
