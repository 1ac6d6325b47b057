"""UpdateFeatures: change feature levels, either all that a request names or none (KIP-584).

Versions: 0 says whether a downgrade is meant; 1+ says which kind of change is meant, and has ``validate_only``; 2 has
one error for all features.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.controller.features import SAFE_DOWNGRADE, UPGRADE, check_update
from tidelog.broker.loop.steps import Steps, wait_for
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes, note_line
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

API_KEY = ApiKey.UPDATE_FEATURES
MIN_VERSION = 0
MAX_VERSION = 2
Request = UpdateFeaturesRequest


def handle(broker: Broker, context: RequestContext, request: UpdateFeaturesRequest) -> Steps[UpdateFeaturesResponse]:
    """Check every update, then apply all. The first error refuses the whole request. The answer is sent when all
    changes are durable.

    Raises KafkaStorageError.
    """
    levels: list[VersionedRecord] = []
    for update in request.feature_updates:
        kind = update.upgrade_type
        if context.api_version == 0:
            kind = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
        try:
            levels.append(check_update(broker.metadata, update.feature, update.max_version_level, kind))
        except KafkaError as error:
            return UpdateFeaturesResponse(
                error_code=error.code,
                error_message="The update failed for all features since the following feature had an error: "
                f"{update.feature}: {error.message}",
            )
    if not request.validate_only:
        broker.controller.commit(levels)
        synced = broker.controller.when_synced()
        changed = {update.feature: update.max_version_level for update in request.feature_updates}
        with Notes(broker.late_lines) as notes:
            notes.add(synced, note_line("features changed", context, levels=changed))
            yield from wait_for(synced)
            yield from notes.write()
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(feature=update.feature, error_message=None) for update in request.feature_updates
        ],
    )


def error_response(request: UpdateFeaturesRequest, error: KafkaError) -> UpdateFeaturesResponse:
    """Build an answer that has only the error."""
    return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
