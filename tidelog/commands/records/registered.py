"""Conversion between JSON and values with a schema of a registry, for ``consume`` and ``produce``.

A registry's client and the libraries of formats are imported only with ``--value-format``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from tidelog.client import ClientError
from tidelog.commands.frame.options import key_values, read_text
from tidelog.protocol.foreign_text import decode_json

if TYPE_CHECKING:
    from tidelog.pipeline.values.json_form import JsonForm
    from tidelog.pipeline.values.registry import RegisteredSchema, Registry

KINDS = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF"}
REGISTRY_VARIABLE = "TIDELOG_REGISTRY"
_Function = TypeVar("_Function", bound=Callable[..., Any])


class RegisteredValues:
    """Decoder and encoder of values of one format, a context manager; ``schema`` is the schema for encoding."""

    def __init__(self, registry: Registry, kind: str) -> None:
        """``kind`` is the registry's name of the format."""
        self._registry = registry
        self._kind = kind
        self.schema: RegisteredSchema | None = None

    def __enter__(self) -> RegisteredValues:
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the client's connections."""
        with as_client_errors():
            self._registry.close()

    def choose(self, topic: str, path: str | None, number: int | None) -> None:
        """Choose the schema for encoding: from a file, which is registered, by id, or the topic's newest. Raises
        ClientError, OSError.
        """
        subject = f"{topic}-value"
        with as_client_errors():
            if path is not None:
                self.schema = self._registry.register(subject, self._kind, read_text(path))
            else:
                self.schema = (
                    self._registry.latest_schema(subject) if number is None else self._registry.schema_by_id(number)
                )
            self._form_of(self.schema)

    def read(self, value: bytes) -> Any:
        """Decode a value to JSON. Raises ClientError."""
        from tidelog.pipeline.values.registry import split_header

        with as_client_errors():
            number, payload = split_header(value)
            return self._form_of(self._registry.schema_by_id(number)).read(payload)

    def write(self, text: bytes) -> bytes:
        """Encode a value from the text of its JSON. Raises ClientError."""
        from tidelog.pipeline.values.json_form import with_header

        assert self.schema is not None, "call choose before write"
        try:
            value = decode_json(text)
        except ValueError as error:
            raise ClientError(f"the value is not JSON: {error}") from None
        with as_client_errors():
            return with_header(self.schema, self._form_of(self.schema).write(value))

    def _form_of(self, schema: RegisteredSchema) -> JsonForm:
        from tidelog.pipeline.values.json_form import json_form

        if schema.kind != self._kind:
            raise ClientError(f"schema {schema.id} is {schema.kind}, expected {self._kind}")
        return json_form(schema)


@contextmanager
def as_client_errors() -> Iterator[None]:
    """Turn errors of a registry, of a format and of a missing package inside ``with`` into ClientErrors."""
    from tidelog.pipeline.job_errors import REGISTRY_INSTALL, JobError
    from tidelog.pipeline.values.registry import UndecodableError

    try:
        yield
    except ImportError as error:
        raise ClientError(f"{error.name} is not installed: {REGISTRY_INSTALL}") from error
    except (JobError, UndecodableError) as error:
        raise ClientError(str(error)) from error


def registry_options(function: _Function) -> _Function:
    """Add ``--value-format``, ``--registry`` and ``--registry-property``; the function gets them as ``values``."""

    @functools.wraps(function)
    def with_values(
        *, value_format: str | None, registry: str | None, registry_property: tuple[str, ...], **given: Any
    ) -> Any:
        if value_format is None:
            source = click.get_current_context().get_parameter_source("registry")
            if source is click.core.ParameterSource.COMMANDLINE or registry_property:
                raise click.UsageError("--registry and --registry-property: expected --value-format with them")
            return function(values=None, **given)
        if registry is None:
            raise click.UsageError(f"--value-format {value_format}: expected --registry URL with it")
        properties = key_values(registry_property, "--registry-property")
        with open_values(registry, properties, value_format) as values:
            return function(values=values, **given)

    decorated = click.option(
        "--registry-property",
        multiple=True,
        metavar="KEY=VALUE",
        help="a property of the registry's client, named as in confluent-kafka; may be repeated",
    )(with_values)
    decorated = click.option(
        "--registry",
        metavar="URL",
        envvar=REGISTRY_VARIABLE,
        help=f"the schema registry of --value-format; default: ${REGISTRY_VARIABLE}",
    )(decorated)
    decorated = click.option(
        "--value-format",
        type=click.Choice(list(KINDS)),
        help="the format of values, which have a schema in --registry; the command reads and prints them as JSON",
    )(decorated)
    return cast(_Function, decorated)


def open_values(url: str, properties: dict[str, str], value_format: str) -> RegisteredValues:
    """Build the decoder and encoder of a registry's values, without a request."""
    from tidelog.pipeline.values.registry import Registry

    return RegisteredValues(Registry((("url", url), *properties.items())), KINDS[value_format])
