"""AlterClientQuotas: set and remove quotas, entity by entity (KIP-546). Versions 0, 1 (flexible)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.client_quotas import ClientQuotas, QuotaChange, entity_of
from tidelog.broker.loop.deferred import error_of
from tidelog.broker.loop.steps import Steps, apply_each, strip_traceback
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes, note_quotas
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityDataResponse,
    EntryData,
    EntryDataResponse,
)

API_KEY = ApiKey.ALTER_CLIENT_QUOTAS
MIN_VERSION = 0
MAX_VERSION = 1
Request = AlterClientQuotasRequest


def handle(
    broker: Broker, context: RequestContext, request: AlterClientQuotasRequest
) -> Steps[AlterClientQuotasResponse]:
    """Change the quotas of each entity by itself. A new quota applies from the next request on. The answer is sent when
    all changes are durable."""
    with Notes(broker.late_lines) as notes:
        outcomes = yield from alter_each(broker, context, request, notes)
        synced = broker.controller.when_synced()
        yield synced
        yield from notes.write()
    failure = error_of(synced)
    entries = yield from apply_each(
        zip(request.entries, outcomes, strict=True), lambda pair: build_answer(pair[0], pair[1] or failure)
    )
    return AlterClientQuotasResponse(entries=entries)


def alter_each(
    broker: Broker, context: RequestContext, request: AlterClientQuotasRequest, notes: Notes
) -> Steps[list[KafkaError | None]]:
    """Change the quotas of one entity in each step; return each entity's error, or None."""
    quotas = ClientQuotas(broker.controller)
    outcomes: list[KafkaError | None] = []
    for entry in request.entries:
        try:
            entity = entity_of((part.entity_type, part.entity_name) for part in entry.entity)
            changes = [QuotaChange(op.key, None if op.remove else op.value) for op in entry.ops]
            quotas.alter(entity, changes, request.validate_only)
            outcomes.append(None)
            if not request.validate_only:
                line = note_quotas(context, entity, [change.key for change in changes])
                notes.add(broker.controller.when_synced(), line)
        except KafkaError as error:
            outcomes.append(strip_traceback(error))
        yield None
    return outcomes


def build_answer(entry: EntryData, error: KafkaError | None = None) -> EntryDataResponse:
    """Build the part of the response that is about one entity."""
    return EntryDataResponse(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
        entity=[
            EntityDataResponse(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity
        ],
    )


def error_response(request: AlterClientQuotasRequest, error: KafkaError) -> AlterClientQuotasResponse:
    """Answer every entity with the error."""
    return AlterClientQuotasResponse(entries=[build_answer(entry, error) for entry in request.entries])
