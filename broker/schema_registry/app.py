"""HTTP interface of the schema registry, as Confluent publishes it. Imported with the first connection.

GET  /                                          {}
GET  /schemas, /schemas/types                   schemas of all subjects; the types
GET  /schemas/ids/ID, .../schema                a schema by its id
GET  /schemas/ids/ID/subjects, .../versions     the subjects that have it; with their versions
GET  /subjects, /subjects/S/versions            names of subjects; numbers of versions
GET  /subjects/S/versions/V, .../schema         a version; ``latest`` is the newest
GET  /subjects/S/versions/V/referencedby        ids of the schemas that refer to it
POST /subjects/S                                the version that a schema has there
POST /subjects/S/versions                       register a schema
DELETE /subjects/S, /subjects/S/versions/V      delete, for good with ?permanent=true
POST /compatibility/subjects/S/versions[/V]     whether a schema would be accepted
GET, PUT, DELETE /config[/S], /mode[/S]         compatibility level; read-write, read-only or import
GET  /contexts                                  the names of contexts

A subject of a context is called ``:.CONTEXT:S``. Below ``/contexts/.CONTEXT`` the same paths, except ``/`` and
``/contexts``, are about that context. Types and ids of schemas are the same in all contexts.

Names of subjects may hold slashes, encoded as %2F. Errors are ``{"error_code": 40401, "message": ...}``. The guards of
the admin interface authorize each request: reading needs READ on the topic ``_schemas``, everything else WRITE. Loop
thread only.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tidelog.broker.admin.app import build_stores, close_logins, run_site, tls_of
from tidelog.broker.admin.guard import Hosts, add_headers, make_guard
from tidelog.broker.admin.login.logins import Logins
from tidelog.broker.admin.permissions import Need, Permissions
from tidelog.broker.config.keys.admin import SCHEMA_REGISTRY_LISTENER
from tidelog.broker.schema_registry import errors
from tidelog.broker.schema_registry.changes import Submission, parse_version, submission_of, version_of, versions_of
from tidelog.broker.schema_registry.contexts import context_in, context_prefix, qualify
from tidelog.broker.schema_registry.errors import RegistryError
from tidelog.broker.schema_registry.records import PROTOBUF, SCHEMA_TYPES, RegisteredSchema, type_and_references
from tidelog.broker.schema_registry.service import Registry
from tidelog.broker.schema_registry.state import DEFAULT_LEVEL, DEFAULT_MODE, State
from tidelog.broker.schema_registry.topic import TOPIC
from tidelog.protocol.acl import AclOperation
from tidelog.protocol.foreign_text import decode_json

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


MAX_BODY_BYTES = 1 << 20
"""Largest size in bytes of a request's body: about the default of ``max.message.bytes``, which bounds a record of
``_schemas``."""
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
ACCEPTED_TYPES = frozenset(
    {
        CONTENT_TYPE,
        "application/vnd.schemaregistry+json",
        "application/json",
        "application/octet-stream",  # aiohttp's type of a request without one
    }
)
REGISTRY: web.AppKey[Registry] = web.AppKey("registry", Registry)
CHECK = "/compatibility/subjects/{subject}/versions"
CHECKS = (CHECK, CHECK + "/{version}")
LOOK_UP = "/subjects/{subject}"
CONTEXT = "/contexts/{context}"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serve(broker: Broker, listener: socket.socket) -> web.AppRunner:
    """Serve the listening socket. ``cleanup`` of the returned runner closes the socket. Raises ConfigError."""
    stores = build_stores(broker, SCHEMA_REGISTRY_LISTENER)
    logins = Logins(broker, tls_of(stores), SCHEMA_REGISTRY_LISTENER)
    permissions = Permissions(broker, logins, need_of)
    hosts = Hosts(broker.config, SCHEMA_REGISTRY_LISTENER)
    guard = make_guard(hosts, permissions.refuse_caller, MAX_BODY_BYTES, check_page=permissions.refuse_page)
    app = web.Application(middlewares=[guard, answer_errors], client_max_size=MAX_BODY_BYTES + 1)
    app[REGISTRY] = Registry(broker)
    app.on_response_prepare.append(add_headers)
    app.add_routes(ROUTES)
    app.on_cleanup.append(partial(close_logins, logins, stores))
    app.on_cleanup.append(close_registry)
    return await run_site(broker, app, listener, stores)


async def close_registry(app: web.Application) -> None:
    """End the registry's thread."""
    app[REGISTRY].close()


def need_of(request: web.Request, path: str) -> Need:
    """Return the right that a request needs."""
    path = path.removeprefix(CONTEXT)
    reads = request.method in ("GET", "HEAD") or (request.method == "POST" and (path in CHECKS or path == LOOK_UP))
    return Need(AclOperation.READ if reads else AclOperation.WRITE, topic=TOPIC)


# ---- answers


def answer(value: Any, status: int = 200) -> web.Response:
    """Answer with a value as JSON."""
    return text_answer(json.dumps(value, ensure_ascii=False), status)


def text_answer(text: str, status: int = 200) -> web.Response:
    """Answer with a text; a lone surrogate, which another registry may have stored, becomes a question mark."""
    return web.Response(body=text.encode("utf-8", "replace"), status=status, content_type=CONTENT_TYPE, charset="utf-8")


def refusal(error: RegistryError) -> web.Response:
    """Answer with an error as JSON."""
    return answer({"error_code": error.code, "message": error.message}, error.status)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors in Confluent's form."""
    try:
        return await handler(request)
    except RegistryError as error:
        return refusal(error)
    except web.HTTPException as error:
        return refusal(RegistryError(error.status, f"HTTP {error.status} {error.reason}"))


def describe_version(schema: RegisteredSchema) -> dict[str, Any]:
    """Describe a version for an answer."""
    identity = {"subject": schema.subject, "version": schema.version, "id": schema.id}
    return {**identity, **type_and_references(schema), "schema": schema.text}


def is_set(request: web.Request, name: str) -> bool:
    """Return whether a parameter is ``true``."""
    return request.query.get(name, "").lower() == "true"


async def body_of(request: web.Request) -> Any:
    """Read the JSON of a request. Raises RegistryError."""
    if request.content_type not in ACCEPTED_TYPES:
        raise RegistryError(415, f"HTTP 415 Unsupported Media Type: {request.content_type}, expected {CONTENT_TYPE}")
    try:
        return decode_json(await request.read())
    except ValueError:
        raise RegistryError(400, "the body is not JSON") from None


def subject_of(request: web.Request) -> str:
    """Return the subject that a path names, with its context."""
    return qualify(request.match_info["subject"], context_of(request))


async def submission_in(request: web.Request) -> Submission:
    """Read the schema in a request's body. Its references are in the context of its subject, unless they name another
    context. Raises RegistryError.
    """
    found = submission_of(await body_of(request))
    context = context_in(subject_of(request))
    references = (one._replace(subject=qualify(one.subject, context)) for one in found.references)
    return found._replace(references=tuple(references))


def context_of(request: web.Request) -> str:
    """Return the context that a path names, as a prefix of subjects."""
    return context_prefix(request.match_info.get("context", "."))


def target_of(request: web.Request) -> str | None:
    """Return the subject or context whose setting a path names; None for the setting of the whole registry."""
    return subject_of(request) if "subject" in request.match_info else context_of(request) or None


def version_in(request: web.Request) -> int:
    """Parse the version that a path names. Raises RegistryError."""
    return parse_version(request.match_info["version"])


def page(request: web.Request, rows: list[Any]) -> list[Any]:
    """Select the rows of the page that the parameters ``offset`` and ``limit`` name. Raises RegistryError."""
    try:
        offset, limit = int(request.query.get("offset", "0")), int(request.query.get("limit", "-1"))
    except ValueError:
        raise RegistryError(422, "offset and limit must be numbers") from None
    return rows[max(offset, 0) :][: limit if limit >= 0 else None]


# ---- schemas


async def root(_request: web.Request) -> web.Response:
    """Answer with an empty object."""
    return answer({})


async def types(_request: web.Request) -> web.Response:
    """Answer with the types of schemas."""
    return answer(SCHEMA_TYPES)


async def contexts(request: web.Request) -> web.Response:
    """Answer with the names of contexts: the default one, and those that subjects have."""
    state = await request.app[REGISTRY].state()
    found = {context_in(name).strip(":") for name in state.subjects(deleted=True)}
    return answer(sorted({"."} | (found - {""})))


async def schemas(request: web.Request) -> web.Response:
    """Answer with the versions of the subjects that ``select_names`` selects."""
    state, deleted = await request.app[REGISTRY].state(), is_set(request, "deleted")
    rows = []
    for subject in select_names(request, state):
        versions = state.versions(subject, deleted=deleted)
        rows += versions[-1:] if is_set(request, "latestOnly") else versions
    found = page(request, rows)
    return await asyncio.to_thread(lambda: answer([describe_version(one) for one in found]))


async def find_with_id(request: web.Request) -> list[RegisteredSchema]:
    """Return the versions with the id that a path names, one at least. Raises RegistryError."""
    text = request.match_info["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise RegistryError(404, "HTTP 404 Not Found")
    found = (await request.app[REGISTRY].state()).find_by_id(int(text))
    if not found:
        raise errors.schema_not_found(int(text))
    return found


async def text_of(request: web.Request, schema: RegisteredSchema) -> str:
    """Return the text of a schema; for Protobuf with ``format=serialized`` a file descriptor in base64. Raises
    RegistryError."""
    if request.query.get("format") != "serialized" or schema.schema_type != PROTOBUF:
        return schema.text
    parsed = await request.app[REGISTRY].parse_version(schema)
    return str(parsed.model["serialized"])


async def schema_by_id(request: web.Request) -> web.Response:
    """Answer with a schema."""
    schema = (await find_with_id(request))[0]
    found = {**type_and_references(schema), "schema": await text_of(request, schema)}
    if is_set(request, "fetchMaxId"):
        found["maxId"] = (await request.app[REGISTRY].state()).last_id
    return answer(found)


async def text_by_id(request: web.Request) -> web.Response:
    """Answer with the text of a schema alone."""
    schema = (await find_with_id(request))[0]
    return text_answer(await text_of(request, schema))


async def subjects_of_id(request: web.Request) -> web.Response:
    """Answer with the names of the subjects that have a schema."""
    found = [one for one in await find_with_id(request) if is_set(request, "deleted") or not one.deleted]
    return answer(sorted({one.subject for one in found}))


async def versions_of_id(request: web.Request) -> web.Response:
    """Answer with the subjects and versions that have a schema."""
    found = [one for one in await find_with_id(request) if is_set(request, "deleted") or not one.deleted]
    return answer([{"subject": one.subject, "version": one.version} for one in found])


# ---- subjects


async def subjects(request: web.Request) -> web.Response:
    """Answer with the names of subjects."""
    state = await request.app[REGISTRY].state()
    return answer(page(request, select_names(request, state)))


def select_names(request: web.Request, state: State) -> list[str]:
    """Select the subjects whose names begin with ``subjectPrefix``, in the context that it or the path names.

    ``:*:`` means all contexts; it is the default where the path names no context.
    """
    every = state.subjects(deleted=is_set(request, "deleted"), deleted_only=is_set(request, "deletedOnly"))
    prefix = request.query.get("subjectPrefix", "" if "context" in request.match_info else ":*:")
    if prefix.startswith(":*:"):
        inner = prefix.removeprefix(":*:")
        return [name for name in every if name.removeprefix(context_in(name)).startswith(inner)]
    prefix = qualify(prefix, context_of(request))
    return [name for name in every if name.startswith(prefix) and context_in(name) == context_in(prefix)]


async def versions(request: web.Request) -> web.Response:
    """Answer with the numbers of a subject's versions."""
    state, only = await request.app[REGISTRY].state(), is_set(request, "deletedOnly")
    found = versions_of(state, subject_of(request), deleted=only or is_set(request, "deleted"))
    return answer([one.version for one in found if one.deleted or not only])


async def find_version(request: web.Request) -> RegisteredSchema:
    """Return the version that a path names. Raises RegistryError."""
    state = await request.app[REGISTRY].state()
    return version_of(state, subject_of(request), version_in(request), deleted=is_set(request, "deleted"))


async def version(request: web.Request) -> web.Response:
    """Answer with a version."""
    schema = await find_version(request)
    return answer({**describe_version(schema), "schema": await text_of(request, schema)})


async def version_text(request: web.Request) -> web.Response:
    """Answer with the text of a version alone."""
    schema = await find_version(request)
    return text_answer(await text_of(request, schema))


async def referenced_by(request: web.Request) -> web.Response:
    """Answer with the ids of the schemas that refer to a version."""
    schema = await find_version(request)
    state = await request.app[REGISTRY].state()
    return answer(sorted({one.id for one in state.references_to(schema.subject, schema.version)}))


async def look_up(request: web.Request) -> web.Response:
    """Answer with the version of a subject that is the schema in the body."""
    submission = await submission_in(request)
    found = await request.app[REGISTRY].look_up(
        subject_of(request), submission, deleted=is_set(request, "deleted"), normalize=is_set(request, "normalize")
    )
    return answer({**describe_version(found), "schema": await text_of(request, found)})


async def register(request: web.Request) -> web.Response:
    """Register a schema under a subject."""
    submission = await submission_in(request)
    found = await request.app[REGISTRY].register(
        subject_of(request), submission, normalize=is_set(request, "normalize")
    )
    return answer({"id": found.id, "version": found.version, **type_and_references(found), "schema": found.text})


async def delete_subject(request: web.Request) -> web.Response:
    """Delete a subject."""
    permanent = is_set(request, "permanent")
    return answer(await request.app[REGISTRY].delete_subject(subject_of(request), permanent=permanent))


async def delete_version(request: web.Request) -> web.Response:
    """Delete a version."""
    number, permanent = version_in(request), is_set(request, "permanent")
    return answer(await request.app[REGISTRY].delete_version(subject_of(request), number, permanent=permanent))


# ---- compatibility


async def compatibility(request: web.Request) -> web.Response:
    """Answer whether a schema would be compatible; with ``verbose`` also why not."""
    number = version_in(request) if "version" in request.match_info else None
    submission = await submission_in(request)
    faults = await request.app[REGISTRY].compatibility(subject_of(request), submission, number)
    found: dict[str, Any] = {"is_compatible": not faults}
    return answer({**found, "messages": faults} if is_set(request, "verbose") else found)


# ---- settings


async def show_level(request: web.Request) -> web.Response:
    """Answer with a compatibility level."""
    state = await request.app[REGISTRY].state()
    level = find_setting(request, state.levels, DEFAULT_LEVEL, state.level_of, errors.compatibility_not_configured)
    return answer({"compatibilityLevel": level})


async def set_level(request: web.Request) -> web.Response:
    """Set a compatibility level."""
    value = field_of(await body_of(request), "compatibility")
    level = await request.app[REGISTRY].set_level(target_of(request), value)
    return answer({"compatibility": level})


async def unset_level(request: web.Request) -> web.Response:
    """Remove a compatibility level that was set."""
    level = await request.app[REGISTRY].unset_level(target_of(request))
    return answer({"compatibility": level, "compatibilityLevel": level})


async def show_mode(request: web.Request) -> web.Response:
    """Answer with a mode."""
    state = await request.app[REGISTRY].state()
    return answer({"mode": find_setting(request, state.modes, DEFAULT_MODE, state.mode_of, errors.mode_not_configured)})


async def set_mode(request: web.Request) -> web.Response:
    """Set a mode."""
    value, subject = field_of(await body_of(request), "mode"), target_of(request)
    return answer({"mode": await request.app[REGISTRY].set_mode(subject, value, force=is_set(request, "force"))})


async def unset_mode(request: web.Request) -> web.Response:
    """Remove a mode that was set."""
    return answer({"mode": await request.app[REGISTRY].unset_mode(target_of(request))})


def find_setting(
    request: web.Request,
    own: Mapping[str | None, str],
    default: str,
    setting_of: Callable[[str], str],
    missing: Callable[[str], RegistryError],
) -> str:
    """Return a setting of the registry or of a subject; ``own`` has those that were set. Raises RegistryError.

    With ``defaultToGlobal`` a subject without its own setting gets the one that applies to it.
    """
    subject = target_of(request)
    if subject is None:
        return own.get(None, default)
    if subject not in own and not is_set(request, "defaultToGlobal"):
        raise missing(subject)
    return setting_of(subject)


def field_of(body: Any, name: str) -> Any:
    """Read a field of a request. Raises RegistryError."""
    if not isinstance(body, dict):
        raise RegistryError(422, "the body must be a JSON object")
    return body.get(name)


def routes_of_setting(base: str, show: Handler, put: Handler, unset: Handler) -> Iterator[web.RouteDef]:
    """Yield the routes of a setting, of the whole registry and of one subject."""
    for path in (base, base + "/{subject}"):
        yield from (web.get(path, show), web.put(path, put), web.delete(path, unset))


_PLAIN = [
    web.get("/", root),
    web.get("/contexts", contexts),
    web.get("/schemas", schemas),
    web.get("/schemas/types", types),
    web.get("/schemas/ids/{id}", schema_by_id),
    web.get("/schemas/ids/{id}/schema", text_by_id),
    web.get("/schemas/ids/{id}/subjects", subjects_of_id),
    web.get("/schemas/ids/{id}/versions", versions_of_id),
    web.get("/subjects", subjects),
    web.post(LOOK_UP, look_up),
    web.delete("/subjects/{subject}", delete_subject),
    web.get("/subjects/{subject}/versions", versions),
    web.post("/subjects/{subject}/versions", register),
    web.get("/subjects/{subject}/versions/{version}", version),
    web.delete("/subjects/{subject}/versions/{version}", delete_version),
    web.get("/subjects/{subject}/versions/{version}/schema", version_text),
    web.get("/subjects/{subject}/versions/{version}/referencedby", referenced_by),
    *(web.post(path, compatibility) for path in CHECKS),
    *routes_of_setting("/config", show_level, set_level, unset_level),
    *routes_of_setting("/mode", show_mode, set_mode, unset_mode),
]
ROUTES = [*_PLAIN, *(web.route(one.method, CONTEXT + one.path, one.handler) for one in _PLAIN[2:])]
