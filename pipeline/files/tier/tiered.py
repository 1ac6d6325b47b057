"""Segments in a remote tier, as Aiven's plugin for Apache Kafka's tiered storage writes them, seen as a data directory.

    in the store   PREFIX<topic>-<topic id>/<partition>/<base offset>-<segment id>.log           chunks, one by one
                                                                                  .rsm-manifest  how it was cut, JSON
    seen           <topic>-<partition>/<base offset>.log                 the bytes that the broker had
                   <topic>-<partition>/partition.metadata                the topic's id

A chunk holds ``originalChunkSize`` bytes of the segment, compressed by zstd where the manifest says so. An upload
counts once its manifest is there, which the plugin writes last. Uploads that overlap are ordered by the leader
epoch in which they end, then by their last offsets. The last upload is used to its end, each earlier one only below the
start of the next: a leader of a later epoch may have truncated the log and written it again. Encrypted segments need
``pem=DIRECTORY`` with the private keys (``keys``). Indices in the tier are not read: batches are found by walking
over their headers.

With ``local=DIRECTORY`` the files of the broker's own data directory are seen as well. From the first local segment on
they replace those of the tier.
"""

from __future__ import annotations

import base64
import io
import os
import re
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import cramjam
import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, LocalFileSystem, PyFileSystem

from tidelog.pipeline.files.tier.keys import SegmentEncryption, chunk_decrypter, parse_encryption
from tidelog.pipeline.files.tier.view import LISTING_S, TIER_ROOT
from tidelog.protocol.foreign_text import decode_json, show_json

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEME = "tiered+"
KEPT_CHUNKS = 4
MAX_SEGMENT_BYTES, MAX_OFFSET, MAX_EPOCH = 2**31 - 1, 2**63 - 1, 2**31 - 1
"""Kafka's own limits of a segment's size, of an offset and of a leader epoch."""
MAX_CHUNKS = 1 << 20
"""Limit of a segment's chunks: the largest segment in chunks of 2 KiB. The plugin's default chunk is 4 MiB."""
MAX_MANIFEST_BYTES = 16 << 20
Decrypt = Callable[[bytes], bytes]
_TOPIC = re.compile(r"(?P<topic>.+)-(?P<id>[\w-]{22})")
_MANIFEST = re.compile(r"(?P<base>[0-9]{20})-(?P<id>[\w-]{22})\.rsm-manifest")
_PARTITION = re.compile("[0-9]+")
_SEEN_LOG = re.compile(r"(?P<base>[0-9]{20})\.log")
_METADATA = "partition.metadata"
#: Base offset and length, with which each batch begins.
_BATCH = struct.Struct(">qi")


@dataclass(frozen=True, slots=True)
class TieredSegment:
    """A segment of the tier: the key of its object, its first and last offset, and where each chunk begins in the
    object.

    The first ``size`` of its ``file_size`` bytes are used. ``epochs``: pairs of leader epoch and its first offset, in
    order; empty if the manifest has none."""

    key: str
    base: int
    end: int
    size: int
    chunk_size: int
    starts: tuple[int, ...]
    compressed: bool
    file_size: int
    encryption: SegmentEncryption | None = None
    epochs: tuple[tuple[int, int], ...] = ()

    def epoch_below(self, offset: int) -> int:
        """Return the last leader epoch that begins below an offset, -1 without any."""
        return max((epoch for epoch, start in self.epochs if start < offset), default=-1)


def parse_manifest(text: bytes, key: str, base: int) -> TieredSegment:
    """Parse a manifest to the segment it describes. Raises OSError when it cannot be read."""
    try:
        raw = decode_json(text)
        if raw["version"] != "1":
            raise OSError(f"{key} is of version {raw['version']}: expected a manifest of version 1")
        index, metadata = raw["chunkIndex"], raw.get("remoteLogSegmentMetadata", {})
        if _number(metadata, "startOffset", 0, MAX_OFFSET, base) != base:
            raise ValueError(f"startOffset is {metadata['startOffset']}, expected {base} as in its name")
        end = _number(metadata, "endOffset", base, MAX_OFFSET, base)
        size = _number(index, "originalFileSize", 0, MAX_SEGMENT_BYTES)
        chunk_size = _number(index, "originalChunkSize", 1, MAX_SEGMENT_BYTES)
        starts = (0, *accumulate(_transformed_sizes(index, -(-size // chunk_size))))
        if not isinstance(raw["compression"], bool):
            raise TypeError("compression is neither true nor false")
        encryption = None if raw.get("encryption") is None else parse_encryption(raw["encryption"])
        epochs = tuple(sorted((int(one), int(at)) for one, at in metadata.get("segmentLeaderEpochs", {}).items()))
        return TieredSegment(key, base, end, size, chunk_size, starts, raw["compression"], size, encryption, epochs)
    except (
        ValueError, LookupError, TypeError, AttributeError, struct.error, cramjam.DecompressionError, RecursionError,
    ) as error:  # fmt: skip
        raise OSError(f"{key} is not a manifest of a segment: {error}") from error


def _number(raw: dict[str, Any], name: str, smallest: int, largest: int, default: int | None = None) -> int:
    """Read a whole number of a manifest; ``default`` None: it must be there. Raises KeyError, ValueError."""
    found = raw[name] if default is None else raw.get(name, default)
    if type(found) is not int or not smallest <= found <= largest:
        raise ValueError(f"{name} is {show_json(found, 100)}, expected a whole number from {smallest} to {largest}")
    return found


def _transformed_sizes(index: dict[str, Any], count: int) -> list[int]:
    """Compute the sizes that the segment's chunks have in the store. Raises ValueError and others for a damaged
    index.
    """
    if count > MAX_CHUNKS:
        raise ValueError(f"the segment has {count} chunks, expected up to {MAX_CHUNKS}")
    if index["type"] == "fixed":
        size = _number(index, "transformedChunkSize", 0, MAX_SEGMENT_BYTES)
        last = _number(index, "finalTransformedChunkSize", 0, MAX_SEGMENT_BYTES)
        return [size] * (count - 1) + [last] * (count > 0)
    if index["type"] != "variable":
        raise ValueError(f"the chunk index is of type {show_json(index['type'], 100)}, expected fixed or variable")
    data = _decompress(base64.b64decode(index["transformedChunks"], validate=True), 9 + 4 * count)
    sizes = decode_sizes(data)
    if len(sizes) != count or min(sizes, default=0) < 0:
        raise ValueError(f"transformedChunks has {len(sizes)} sizes, expected {count} that are not negative")
    return sizes


def decode_sizes(data: bytes) -> list[int]:
    """Decode the sizes of chunks, all numbers big-endian.

    Four bytes of count, four of base and one of ``width``; then for each chunk but the last its size less the base, in
    ``width`` bytes; then the size of the last chunk in four. With one chunk its size follows the count directly.
    Raises ValueError and struct.error for damage.
    """
    (count,) = struct.unpack_from(">i", data)
    if count < 2:
        return list(struct.unpack_from(f">{max(count, 0)}i", data, 4))
    base, width = struct.unpack_from(">ib", data, 4)
    end = 9 + (count - 1) * width
    if not 1 <= width <= 4 or len(data) != end + 4:
        raise ValueError(f"transformedChunks has {len(data)} bytes, expected {end + 4} for {count} sizes")
    sizes = [base + int.from_bytes(data[at : at + width], "big") for at in range(9, end, width)]
    return [*sizes, struct.unpack_from(">i", data, end)[0]]


def _decompress(data: bytes, max_bytes: int) -> bytes:
    """Decompress zstd. Raises cramjam.DecompressionError for damage, and for more than ``max_bytes`` bytes."""
    found = bytearray(max_bytes)
    return bytes(found[: cramjam.zstd.decompress_into(data, found)])


class SegmentReader(io.RawIOBase):
    """File-like reader of a segment's bytes from its chunks. One thread at a time, as pyarrow calls it."""

    def __init__(self, source: Any, segment: TieredSegment, decrypt: Decrypt | None) -> None:
        super().__init__()
        self._source = source
        self._segment = segment
        self._decrypt = decrypt
        self._position = 0
        self._chunks: OrderedDict[int, bytes] = OrderedDict()

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._segment.size}[whence]
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Read up to ``size`` bytes; fewer at the end only. Raises OSError."""
        left = self._segment.size - self._position
        left = max(0, left if size is None or size < 0 else min(size, left))
        found = []
        while left:
            number, inside = divmod(self._position, self._segment.chunk_size)
            piece = self._chunk(number)[inside : inside + left]
            found.append(piece)
            self._position += len(piece)
            left -= len(piece)
        return b"".join(found)

    def close(self) -> None:
        """Close the object."""
        if not self.closed:
            self._source.close()
        super().close()

    def _chunk(self, number: int) -> bytes:
        known = self._chunks.get(number)
        if known is None:
            start, end = self._segment.starts[number : number + 2]
            known = self._chunks[number] = self._unpack(number, self._source.read_at(end - start, start))
            while len(self._chunks) > KEPT_CHUNKS:
                self._chunks.popitem(last=False)
        return known

    def _unpack(self, number: int, data: bytes) -> bytes:
        try:
            if self._decrypt is not None:
                data = self._decrypt(data)
            chunk_size = self._segment.chunk_size
            wanted = min(chunk_size, self._segment.file_size - number * chunk_size)
            if self._segment.compressed:
                data = _decompress(data, wanted)
            if len(data) != wanted:
                raise OSError(f"it has {len(data)} bytes, expected {wanted}")
            return data
        except (cramjam.DecompressionError, OSError) as error:
            raise OSError(f"{self._segment.key}, chunk {number}: {error}") from error


def _size_below(reader: SegmentReader, size: int, limit: int) -> int:
    """Count the bytes of the batches that begin below an offset; ``size`` when a batch has an impossible length."""
    position = 0
    while position + _BATCH.size <= size:
        reader.seek(position)
        base, length = _BATCH.unpack(reader.read(_BATCH.size))
        if base >= limit:
            return position
        if length <= 0:
            break
        position += _BATCH.size + length
    return size


def _choose_uploads(uploads: Iterable[TieredSegment], first: int) -> list[tuple[TieredSegment, int]]:
    """Choose the uploads that make up the log below ``first``: by base offset, each with the offset below which it is
    used.

    The search goes back from the upload of the last leader. An upload is left out if, below the start of the next one,
    it has a later epoch than the first of the next: a leader truncated its records.
    """
    found: list[tuple[TieredSegment, int]] = []
    latest = MAX_EPOCH
    for segment in sorted(uploads, key=lambda one: (one.epoch_below(MAX_OFFSET), one.end), reverse=True):
        if segment.base < first and segment.epoch_below(first) <= latest:
            found.append((segment, first))
            first = segment.base
            latest = segment.epochs[0][0] if segment.epochs else latest
    return found[::-1]


class TieredHandler(FileSystemHandler):  # type: ignore[misc]
    """The view of a tier as a data directory, for ``pyarrow.fs.PyFileSystem``. It is read-only."""

    def __init__(self, store: FileSystem, prefix: str, local: str | None, pem: str | None = None) -> None:
        """``prefix``: the plugin's ``key.prefix`` with the bucket before it, as the store's file system names it.
        ``pem``: the directory of the private keys."""
        self._store = store
        self._pem = pem
        self._folder, _, self._name_prefix = prefix.rpartition("/")
        self._local = None if local is None else os.path.abspath(local)
        self._manifests: dict[str, TieredSegment] = {}
        self._sizes: dict[tuple[str, int], int] = {}
        self._listings: dict[str, tuple[float, list[FileInfo]]] = {}

    def get_type_name(self) -> str:
        """Return the name of this kind of file system."""
        return "tiered"

    def normalize_path(self, path: str) -> str:
        """Return the path as it is."""
        return path

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        """Return the kind and size of each path."""
        return [self._info(_below_root(path)) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        """Return the entries of a directory."""
        if not selector.base_dir.strip("/"):
            return [FileInfo(TIER_ROOT, FileType.Directory)]
        folder = _below_root(selector.base_dir)
        found = dict(self._local_infos(folder))
        for info in self._topics() if not folder else self._partition(folder):
            found.setdefault(info.path, info)
        return list(found.values())

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open a file of the view. Raises FileNotFoundError, OSError."""
        path = _below_root(path)
        here = self._find_local(path)
        if here is not None and os.path.isfile(here):
            return LocalFileSystem().open_input_file(here)
        folder, _, name = path.rpartition("/")
        if name == _METADATA and (topic_id := self._topic_id(folder)) is not None:
            return pa.BufferReader(f"version: 0\ntopic_id: {topic_id}".encode())
        match = _SEEN_LOG.fullmatch(name)
        for segment in self._segments(folder) if match is not None else ():
            if segment.base == int(name[:20]):
                return pa.PythonFile(self._reader(segment), mode="r")
        raise FileNotFoundError(path)

    open_input_stream = open_input_file

    # ---- the local directory

    def _find_local(self, path: str) -> str | None:
        return None if self._local is None else os.path.join(self._local, path)

    def _local_infos(self, folder: str) -> Iterable[tuple[str, FileInfo]]:
        here = self._find_local(folder)
        for entry in sorted(os.listdir(here)) if here is not None and os.path.isdir(here) else ():
            path = f"{folder}/{entry}".strip("/")
            yield path, _rename_info(LocalFileSystem().get_file_info(os.path.join(here or "", entry)), path)

    # ---- the tier

    def _topics(self) -> list[FileInfo]:
        found: list[FileInfo] = []
        for topic, _, folder in self._topic_folders():
            numbers = [info.base_name for info in self._list(folder) if _PARTITION.fullmatch(info.base_name)]
            found += [FileInfo(f"{topic}-{number}", FileType.Directory) for number in numbers]
        return found

    def _topic_folders(self) -> Iterable[tuple[str, str, str]]:
        """Yield topic, id and folder of each topic of the tier."""
        for info in self._list(self._folder):
            name = info.base_name.removeprefix(self._name_prefix)
            match = _TOPIC.fullmatch(name)
            if match is not None and info.base_name.startswith(self._name_prefix):
                yield match["topic"], match["id"], info.path

    def _partition(self, folder: str) -> list[FileInfo]:
        segments = self._segments(folder)
        files = [FileInfo(f"{folder}/{one.base:020d}.log", FileType.File, size=one.size) for one in segments]
        if self._topic_id(folder) is not None:
            files.append(FileInfo(f"{folder}/{_METADATA}", FileType.File))
        return files

    def _topic_id(self, folder: str) -> str | None:
        """Find the topic id of a partition directory of the view; None if the tier does not have the topic. Raises
        OSError if the tier has several topics of its name."""
        topic = folder.rpartition("-")[0]
        ids = sorted({number for name, number, _ in self._topic_folders() if name == topic})
        here = self._find_local(f"{folder}/{_METADATA}")
        if here is not None and os.path.exists(here):
            with open(here, encoding="utf-8") as file:
                found = re.search(r"topic_id: *([\w-]{22})", file.read())
            ids = [number for number in ids if found is not None and number == found[1]]
        if len(ids) > 1:
            raise OSError(f"the tier has {len(ids)} topics of the name {topic}: expected one, or local=DIRECTORY")
        return ids[0] if ids else None

    def _segments(self, folder: str) -> list[TieredSegment]:
        """List the segments that make up a partition's log, by base offset, up to the first local one."""
        topic, _, number = folder.rpartition("-")
        topic_id = self._topic_id(folder)
        uploads: list[TieredSegment] = []
        for name, found_id, topic_folder in self._topic_folders():
            if (name, found_id) != (topic, topic_id):
                continue
            for info in self._list(f"{topic_folder}/{number}"):
                match = _MANIFEST.fullmatch(info.base_name)
                if match is not None:
                    uploads.append(self._manifest(info.path, int(match["base"])))
        here = self._find_local(folder)
        names = os.listdir(here) if here is not None and os.path.isdir(here) else ()
        first = min((int(one[:20]) for one in names if _SEEN_LOG.fullmatch(one)), default=2**63)
        return [self._cut(segment, after) for segment, after in _choose_uploads(uploads, first)]

    def _cut(self, segment: TieredSegment, after: int) -> TieredSegment:
        """Cut the segment to the batches below offset ``after``, where the next upload or the first local segment
        begins: replicas roll at other offsets, and each leader uploads its own segments.
        """
        if segment.end < after:
            return segment
        if (segment.key, after) not in self._sizes:
            with self._reader(segment) as reader:
                self._sizes[segment.key, after] = _size_below(reader, segment.size, after)
        return replace(segment, size=self._sizes[segment.key, after])

    def _reader(self, segment: TieredSegment) -> SegmentReader:
        """Open a segment. Raises OSError."""
        decrypt = None
        if segment.encryption is not None:
            try:
                decrypt = chunk_decrypter(segment.encryption, self._pem)
            except OSError as error:
                raise OSError(f"{segment.key}: {error}") from error
        return SegmentReader(self._store.open_input_file(segment.key), segment, decrypt)

    def _manifest(self, path: str, base: int) -> TieredSegment:
        """Return the segment of a manifest, which is read once: it never changes."""
        known = self._manifests.get(path)
        if known is None:
            with self._store.open_input_file(path) as file:
                text = file.read(MAX_MANIFEST_BYTES + 1)
            if len(text) > MAX_MANIFEST_BYTES:
                raise OSError(f"{path} is not a manifest of a segment: it has over {MAX_MANIFEST_BYTES} bytes")
            known = self._manifests[path] = parse_manifest(text, path.removesuffix("rsm-manifest") + "log", base)
        return known

    def _list(self, folder: str) -> list[FileInfo]:
        known = self._listings.get(folder)
        if known is None or time.monotonic() - known[0] > LISTING_S:
            asked = time.monotonic()
            known = asked, self._store.get_file_info(FileSelector(folder, allow_not_found=True))
            self._listings[folder] = known
        return known[1]

    def _info(self, path: str) -> FileInfo:
        here = self._find_local(path)
        if here is not None and os.path.exists(here):
            return _rename_info(LocalFileSystem().get_file_info(here), path)
        if not path:
            return FileInfo(TIER_ROOT, FileType.Directory)
        folder = path.rpartition("/")[0]
        for info in self._topics() if not folder else self._partition(folder):
            if info.path == path:
                return info
        return FileInfo(path, FileType.NotFound)

    # ---- writing, which is refused

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise OSError("a view of a tier is read-only")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


def _below_root(path: str) -> str:
    """Return the path below TIER_ROOT."""
    return path.strip("/").removeprefix(TIER_ROOT).strip("/")


def _rename_info(info: FileInfo, path: str) -> FileInfo:
    return FileInfo(path, info.type, size=info.size, mtime_ns=info.mtime_ns)


def connect_tier(root: str) -> tuple[FileSystem, str]:
    """Open the view at ``tiered+s3://BUCKET?prefix=PREFIX&local=DIRECTORY&pem=DIRECTORY&...``; other options go to the
    store.
    """
    from pyarrow.fs import FileSystem

    address, _, query = root.removeprefix(SCHEME).partition("?")
    options = dict(part.partition("=")[::2] for part in query.split("&") if part)
    prefix, local, pem = (options.pop(name, None) for name in ("prefix", "local", "pem"))
    rest = "&".join(f"{name}={value}" for name, value in options.items())
    store, base = FileSystem.from_uri(f"{address}?{rest}" if rest else address)
    full_prefix = f"{base.rstrip('/')}/{unquote(prefix or '')}"
    return PyFileSystem(TieredHandler(store, full_prefix, _unquote(local), _unquote(pem))), ""


def _unquote(value: str | None) -> str | None:
    return None if value is None else unquote(value)
