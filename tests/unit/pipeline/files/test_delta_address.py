"""Addresses of Delta tables, converted between the forms of pyarrow and deltalake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.pipeline.errors import OptionError
from tidelog.pipeline.files.delta_address import PATIENCE, DeltaAddress, delta_errors
from tidelog.pipeline.job_errors import JobError


def test_a_directory_is_absolute_and_has_no_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = DeltaAddress.of("lake/orders")
    assert (found.path, found.uri, found.options) == (str(tmp_path / "lake/orders"),) * 2 + ((),)
    assert not found.is_remote


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", ()),
        ("?region=eu-central-1", (("AWS_REGION", "eu-central-1"),)),
        (
            "?endpoint_override=http%3A%2F%2Fminio%3A9000",
            (("AWS_ENDPOINT_URL", "http://minio:9000"), ("AWS_ALLOW_HTTP", "true")),
        ),
        (
            "?endpoint_override=minio%3A9000",
            (("AWS_ENDPOINT_URL", "https://minio:9000"), ("AWS_ALLOW_HTTP", "false")),
        ),
        (
            "?scheme=http&endpoint_override=minio%3A9000",
            (("AWS_ENDPOINT_URL", "http://minio:9000"), ("AWS_ALLOW_HTTP", "true")),
        ),
    ],
)
def test_an_address_becomes_options_of_both(query: str, options: tuple[tuple[str, str], ...]) -> None:
    found = DeltaAddress.of(f"s3a://lake/a/orders{query}")
    assert found.is_remote
    assert found.uri == "s3://lake/a/orders"
    assert found.path == f"s3://lake{query}/a/orders"
    assert found.options == (*options, *PATIENCE)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("hdfs://name:8020/orders", "expected a directory or an address"),
        ("tiered+s3://lake/orders", "expected a directory or an address"),
        ("s3://lake", "expected a directory or an address"),
        ("s3://lake/orders?allow_bucket_creation=true", "option allow_bucket_creation is unknown"),
        ("gs://lake/orders?region=a", "option region is unknown"),
        ("s3://key:secret@lake/orders", "^Delta table s3://...@lake/orders: expected no credentials in it"),
        ("ftp://lake/orders", "^Delta table ftp://lake/orders: expected a directory"),
        ("lake/\0orders", "^Delta table .* without a null character"),
    ],
)
def test_other_addresses_are_refused(given: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as raised:
        DeltaAddress.of(given)
    assert "secret" not in str(raised.value)


def test_errors_of_a_directory_stay_as_they_are() -> None:
    with pytest.raises(FileNotFoundError), delta_errors(DeltaAddress.of("/lake")):
        raise FileNotFoundError("/lake")


def test_a_directory_without_a_log_has_no_table(tmp_path: Path) -> None:
    assert DeltaAddress.of(str(tmp_path / "nothing")).open_if_there() is None
    (tmp_path / "empty/_delta_log").mkdir(parents=True)
    assert DeltaAddress.of(str(tmp_path / "empty")).open_if_there() is None
    (tmp_path / "empty/_delta_log/_last_checkpoint").write_text('{"version": 5, "size": 2}')
    assert DeltaAddress.of(str(tmp_path / "empty")).open_if_there() is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other/rows.parquet").write_bytes(b"")
    assert DeltaAddress.of(str(tmp_path / "other")).open_if_there() is None


def test_a_damaged_table_is_an_error_and_not_a_missing_one(tmp_path: Path) -> None:
    log = tmp_path / "orders/_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{broken")
    with pytest.raises(JobError, match="Delta table"):
        DeltaAddress.of(str(tmp_path / "orders")).open_if_there()
