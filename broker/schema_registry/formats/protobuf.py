"""Protobuf schemas: ``.proto`` text or a serialized file descriptor, both compiled by protoc.

protoc runs as a process of its own, in a directory with the schema and its imports alone. It takes 0.1 s, holds no lock
of this process, and reports faults on its error output. A descriptor is first written as text (``proto_text``), the
form in which Confluent's registry stores it. ``identity`` is the text written from the descriptor, so that schemas
differing in comments and spaces are equal. ``ParsedSchema.model`` has the descriptor as ``file``, in base64 as
``serialized``, and those of imports as ``imports``.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from tidelog.broker.schema_registry.formats.proto_text import decode_options, text_of
from tidelog.broker.schema_registry.formats.schema import InvalidSchemaError, ParsedSchema, Source

MAIN = "tidelog_schema.proto"
TIMEOUT_S = 30
MAX_ERROR_BYTES = 2000
MAX_DESCRIPTOR_BYTES = 16 << 20
"""Largest size of a compiled schema with its imports: each field has the full name of its type, so that a text of 1 MiB
with one long name has a descriptor of gigabytes."""
MAX_PROTOC_BYTES = 2 << 30
"""Largest address space of protoc; for a descriptor of 16 MiB it uses a tenth of this."""
_PROTOC = f"""
import resource, sys
from grpc_tools import protoc
for kind, most in (resource.RLIMIT_AS, {MAX_PROTOC_BYTES}), (resource.RLIMIT_FSIZE, {MAX_DESCRIPTOR_BYTES}):
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
sys.exit(protoc.main(["protoc", *sys.argv[1:]]))
"""
_LOG_LINE = re.compile(r"WARNING: All log|[IWEF]\d{4} ")
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")


def parse(source: Source) -> ParsedSchema:
    """Parse a schema. Raises InvalidSchemaError."""
    text, imported = source.text.strip(), dict(source.references)
    sent = decode_descriptor(text) if _BASE64.fullmatch(text) else None
    own, imports = compile_main(imported, text if sent is None else text_of_sent(sent))
    if sent is not None:
        sent.name = MAIN
        text = text_with_options(sent, imports)
        own, imports = compile_main(imported, text)  # again: custom options need the imports of the first compilation
    written, normalized = (text_with_options(one, imports) for one in (own, sort_imports(own)))
    own.ClearField("name")
    serialized = base64.b64encode(own.SerializeToString(deterministic=True)).decode()
    model = {"file": own, "imports": imports, "serialized": serialized}
    return ParsedSchema(source, text, written, model, normalized)


def compile_main(imported: Mapping[str, str], text: str) -> tuple[FileDescriptorProto, tuple[FileDescriptorProto, ...]]:
    """Compile a schema; return it and its imports, each after those that it imports. Raises InvalidSchemaError."""
    found = compile_files({**imported, MAIN: text})
    own = next(one for one in found.file if one.name == MAIN)
    return own, tuple(one for one in found.file if one.name != MAIN)


def text_of_sent(file: FileDescriptorProto) -> str:
    """Return the text of a descriptor that a client sent. Raises InvalidSchemaError if it contradicts itself, as with a
    field of a oneof that does not exist.
    """
    try:
        return text_of(file)
    except (IndexError, TypeError, ValueError) as error:
        raise InvalidSchemaError(f"the descriptor is malformed: {error}") from None


def text_with_options(file: FileDescriptorProto, imports: Sequence[FileDescriptorProto]) -> str:
    """Return the text of a file with its custom options. Raises InvalidSchemaError."""
    try:
        return text_of(decode_options(file, imports))
    except AttributeError:  # the schemas redefine descriptor.proto, with other fields
        return text_of(file)
    except (TypeError, DecodeError) as error:
        raise InvalidSchemaError(f"the descriptor is incomplete: {error}") from None


def sort_imports(file: FileDescriptorProto) -> FileDescriptorProto:
    """Return the file with its imports in alphabetical order."""
    names, found = list(file.dependency), FileDescriptorProto()
    found.CopyFrom(file)
    found.dependency[:] = sorted(names)
    for numbers in (found.public_dependency, found.weak_dependency):
        numbers[:] = sorted(found.dependency.index(names[number]) for number in numbers)
    return found


def decode_descriptor(text: str) -> FileDescriptorProto:
    """Decode a serialized file descriptor. Raises InvalidSchemaError."""
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=False))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise InvalidSchemaError(f"it is neither .proto text nor a serialized file descriptor: {error}") from None


def compile_files(files: Mapping[str, str]) -> FileDescriptorSet:
    """Compile MAIN, which is one of ``files``: text by the name that imports use. The result has the imports, too.

    Raises InvalidSchemaError.
    """
    with tempfile.TemporaryDirectory(prefix="tidelog-proto-") as directory:
        root, out = Path(directory, "in"), Path(directory, "out")
        for name, text in files.items():
            write_import(root, name, text)
        command = [sys.executable, "-I", "-c", _PROTOC, *(f"-I{one}" for one in (root, *well_known()))]
        command += ["--include_imports", f"--descriptor_set_out={out}", MAIN]
        try:
            done = subprocess.run(command, cwd=root, capture_output=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise InvalidSchemaError("it takes too long to compile") from None
        if done.returncode != 0:
            raise InvalidSchemaError(reason_of(done.stderr, f"{root}/"))
        return FileDescriptorSet.FromString(out.read_bytes())


def write_import(root: Path, name: str, text: str) -> None:
    """Write a file under its name in imports. Raises InvalidSchemaError if there can be no file of that name."""
    path = root / safe_name(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:  # for example a and a/b.proto
        raise InvalidSchemaError(f"{name[:100]!r} cannot be imported beside the others: {error.strerror}") from None


def reason_of(output: bytes, directory: str) -> str:
    """Return protoc's errors about the schema, without its log lines and the directory."""
    lines = output[:MAX_ERROR_BYTES].decode("utf-8", "replace").replace(directory, "").splitlines()
    told = [line.replace(f"{MAIN}:", "line ") for line in lines if not _LOG_LINE.match(line)]
    return "; ".join(told) or "it does not compile"


def safe_name(name: str) -> PurePosixPath:
    """Return the name of an import as a path below a directory. Raises InvalidSchemaError."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or len(name.encode()) > 255:
        raise InvalidSchemaError(f"{name[:100]!r} cannot be the name of an import")
    return path


def well_known() -> list[str]:
    """Return the directories with the files that any schema may import."""
    found = [str(Path(grpc_tools.__path__[0], "_proto"))]
    types = importlib.util.find_spec("google.type")  # from googleapis-common-protos, if installed
    if types is not None and types.submodule_search_locations:
        found.append(str(Path(next(iter(types.submodule_search_locations))).parents[1]))
    return found
