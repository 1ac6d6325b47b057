"""Files of a table on a mounted file system, as workers write and read them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.pipeline.export.store import LOCAL, CatalogStore, properties_of


def test_a_file_is_written_read_listed_and_removed(tmp_path: Path) -> None:
    path, table = str(tmp_path / "file.parquet"), pa.table({"a": [1, 2]})
    with LOCAL.open_output(path) as sink:
        pq.write_table(table, sink)
    LOCAL.finish(path)
    assert pq.read_table(LOCAL.open_input(path)).equals(table)
    assert LOCAL.size_of(path) == (tmp_path / "file.parquet").stat().st_size
    assert LOCAL.names_in(str(tmp_path)) == ["file.parquet"]
    LOCAL.remove(path)
    assert LOCAL.names_in(str(tmp_path / "nowhere")) == LOCAL.names_in(str(tmp_path)) == []


def test_a_store_does_not_show_its_credentials() -> None:
    store = CatalogStore(properties_of({"s3.secret-access-key": "secret", "s3.port": 1}))
    assert store.properties == (("s3.port", "1"), ("s3.secret-access-key", "secret"))
    assert "secret" not in repr(store)
