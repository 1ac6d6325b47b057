"""AlterUserScramCredentials: set and remove SCRAM credentials (KIP-554). Version 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.scram_credentials import ScramCredentials, mechanism_of
from tidelog.broker.loop.deferred import error_of
from tidelog.broker.loop.steps import Steps, apply_each, strip_traceback
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Lines, Notes, note_change
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import DuplicateResourceError, KafkaError
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

API_KEY = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
MIN_VERSION = 0
MAX_VERSION = 0
Request = AlterUserScramCredentialsRequest


def handle(
    broker: Broker, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> Steps[AlterUserScramCredentialsResponse]:
    """Make the changes one by one; a user's answer has the user's first error. A credential that is named twice is not
    changed. The answer is sent when all changes are durable."""
    credentials = ScramCredentials(broker.controller)
    named = Counter((change.name, change.mechanism) for change in changes_of(request))
    errors: dict[str, KafkaError | None] = {}
    made: list[ScramCredentialDeletion | ScramCredentialUpsertion] = []
    with Notes(broker.late_lines) as notes:
        try:
            for change in changes_of(request):
                try:
                    if named[change.name, change.mechanism] > 1:
                        raise DuplicateResourceError("A user credential cannot be altered twice in the same request")
                    apply_change(credentials, change)
                    errors.setdefault(change.name, None)
                    made.append(change)
                except KafkaError as error:
                    errors[change.name] = errors.get(change.name) or strip_traceback(error)
                yield None
        finally:
            synced = broker.controller.when_synced()
            notes.add(synced, note_credentials(context, made))
        yield from notes.write()
    failure = error_of(synced)
    return AlterUserScramCredentialsResponse(results=[answer(user, error or failure) for user, error in errors.items()])


def changes_of(
    request: AlterUserScramCredentialsRequest,
) -> Iterator[ScramCredentialDeletion | ScramCredentialUpsertion]:
    """Yield the changes of a request: deletions, then upsertions."""
    yield from request.deletions
    yield from request.upsertions


def apply_change(credentials: ScramCredentials, change: ScramCredentialDeletion | ScramCredentialUpsertion) -> None:
    """Make one change. Raises a KafkaError if it is refused."""
    mechanism = mechanism_of(change.mechanism)
    if isinstance(change, ScramCredentialDeletion):
        credentials.delete(change.name, mechanism)
    else:
        credentials.put(change.name, mechanism, change.iterations, bytes(change.salt), bytes(change.salted_password))


def note_credentials(
    context: RequestContext, changes: Iterable[ScramCredentialDeletion | ScramCredentialUpsertion]
) -> Lines:
    """Write the audit lines of changes."""
    for change in changes:
        event = "credential deleted" if isinstance(change, ScramCredentialDeletion) else "credential set"
        mechanism = mechanism_of(change.mechanism).name.replace("_", "-")
        note_change(event, context, mechanism=mechanism, of=change.name)
        yield


def answer(user: str, error: KafkaError | None) -> AlterUserScramCredentialsResult:
    """Build one user's answer."""
    return AlterUserScramCredentialsResult(
        user=user,
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
    )


def error_response(
    request: AlterUserScramCredentialsRequest, error: KafkaError
) -> Steps[AlterUserScramCredentialsResponse]:
    """Answer every user with the error, once."""
    users = dict.fromkeys(change.name for change in changes_of(request))
    return AlterUserScramCredentialsResponse(results=(yield from apply_each(users, lambda user: answer(user, error))))
