"""Delegation tokens (KIP-48, KIP-373): their owners, lifetimes, and the SCRAM credentials of their bearers.

A token is a record of the metadata log: id, owner, requester, renewers, times. Its secret is the HMAC of its id with
``delegation.token.secret.key`` as the key; it is derived and never stored. The bearer logs in by SCRAM with the id as
user and the HMAC in base64 as password, and is then authenticated as the token's owner. Source:
DelegationTokenControlManager. Loop thread only, except ``derive_credentials``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.config.keys.token import EXPIRY_TIME_MS, MAX_LIFETIME_MS, SECRET_KEY
from tidelog.broker.controller.clients.scram_credentials import MIN_ITERATIONS, ScramMechanism, derive
from tidelog.broker.metadata.image_records import VersionedRecord, token_record
from tidelog.broker.metadata.metadata_image import ScramState, TokenState
from tidelog.broker.security.sasl.scram import TokenCredential
from tidelog.protocol.errors import (
    DelegationTokenAuthDisabledError,
    DelegationTokenExpiredError,
    DelegationTokenNotFoundError,
    DelegationTokenOwnerMismatchError,
)
from tidelog.protocol.metadata_records.records import RemoveDelegationTokenRecord
from tidelog.protocol.types import SystemRandom, random_uuid, uuid_to_str

if TYPE_CHECKING:
    from tidelog.broker.config.broker_config import BrokerConfig
    from tidelog.broker.controller.metadata_controller import MetadataController

_LATEST_MS = 2**63 - 1
Credentials = Mapping[ScramMechanism, ScramState]


class Request(NamedTuple):
    """A request for a new token; principals are ``TYPE:NAME``. A lifetime of 0 or less asks for the longest one."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    lifetime_ms: int


class DelegationTokens:
    """The delegation tokens of a broker: those of the metadata image, and the credentials derived from them."""

    def __init__(self, config: BrokerConfig, controller: MetadataController, now_ms: Callable[[], int]) -> None:
        """``now_ms`` returns the time of the wall clock."""
        self._config = config
        self._controller = controller
        self._now_ms = now_ms
        self._credentials: dict[str, Credentials] = {}
        """Token id -> credentials of its bearer, of tokens that were created or used since the start."""
        self._indexed: Mapping[str, TokenState] = {}
        """The tokens from which ``_by_digest`` was built."""
        self._by_digest: dict[bytes, str] = {}
        """SHA-256 of a secret -> token id, so that the time of a look-up reveals nothing about the secret."""

    @property
    def is_enabled(self) -> bool:
        """True if there is a secret key."""
        return bool(self._config.get(SECRET_KEY))

    def plan(self, request: Request) -> TokenState:
        """Return a new token, for ``create``. Raises DelegationTokenAuthDisabledError."""
        self._check_enabled()
        now, longest = self._now_ms(), self._config.get_int(MAX_LIFETIME_MS)
        lifetime = min(longest, request.lifetime_ms) if request.lifetime_ms > 0 else longest
        max_ms = min(now + lifetime, _LATEST_MS)
        expires_ms = min(max_ms, now + self._config.get_int(EXPIRY_TIME_MS))
        token_id = uuid_to_str(random_uuid(SystemRandom()))
        return TokenState(token_id, request.owner, request.requester, request.renewers, now, max_ms, expires_ms)

    def create(self, token: TokenState, credentials: Credentials) -> None:
        """Commit a token of ``plan``. The caller has derived its credentials in a thread, as that takes some ms. Raises
        KafkaStorageError.
        """
        self._controller.commit([VersionedRecord(token_record(token))])
        self._keep(token.token_id, credentials)

    def renew(self, requester: str, secret: bytes, period_ms: int) -> int:
        """Let a token expire after ``period_ms``, or after the usual period if that is shorter or ``period_ms`` is not
        positive, but not later than its ``max_ms``. Returns the new expiry time. Raises a KafkaError unless the token
        is valid and the requester may renew it.
        """
        token = self._find(secret)
        self._check_not_expired(token)
        check_may_renew(token, requester)
        usual = self._config.get_int(EXPIRY_TIME_MS)
        lifetime = min(usual, period_ms) if period_ms > 0 else usual
        return self._set_expiry(token, min(token.max_ms, self._now_ms() + lifetime))

    def expire(self, requester: str, secret: bytes, period_ms: int) -> int:
        """Let a token expire after ``period_ms``, but not later than its ``max_ms``; remove it if ``period_ms`` is
        negative. Returns the time at which it expires.

        Raises a KafkaError if there is no secret key or no such token, or if the requester may not renew it; also for
        an expired token that is not to be removed.
        """
        token = self._find(secret)
        check_may_renew(token, requester)
        if period_ms < 0:
            self._remove([token])
            return self._now_ms()
        self._check_not_expired(token)
        return self._set_expiry(token, min(token.max_ms, self._now_ms() + period_ms, _LATEST_MS))

    def all_tokens(self) -> Iterable[TokenState]:
        """Return all tokens. Raises DelegationTokenAuthDisabledError."""
        self._check_enabled()
        return self._controller.image.tokens.values()

    def secret_of(self, token_id: str) -> bytes:
        """Compute a token's secret, the HMAC of its id."""
        return hmac.digest(str(self._config.get(SECRET_KEY)).encode(), token_id.encode(), "sha512")

    def credential(self, token_id: str, mechanism: ScramMechanism) -> TokenCredential | None:
        """Return the credential of a token's bearer; None for an unknown or expired token, or without a secret
        key.
        """
        token = self._controller.image.tokens.get(token_id)
        if token is None or not self.is_enabled or self._is_expired(token):
            return None
        credentials = self._credentials.get(token_id)
        if credentials is None:  # created in a former run, or by a controller; deriving takes some ms, once
            credentials = derive_credentials(self.secret_of(token_id))
            self._keep(token_id, credentials)
        return TokenCredential(credentials[mechanism], token.owner.partition(":")[2], token.expires_ms)

    def sweep(self) -> None:
        """Remove expired tokens."""
        self._remove([token for token in self._controller.image.tokens.values() if self._is_expired(token)])

    def _keep(self, token_id: str, credentials: Credentials) -> None:
        """Keep a token's credentials, and drop those of removed tokens: in a cluster the controllers remove them."""
        tokens = self._controller.image.tokens
        self._credentials = {one: kept for one, kept in self._credentials.items() if one in tokens}
        self._credentials[token_id] = credentials

    def _remove(self, tokens: list[TokenState]) -> None:
        if tokens:
            self._controller.commit(
                [VersionedRecord(RemoveDelegationTokenRecord(token_id=token.token_id)) for token in tokens]
            )

    def _set_expiry(self, token: TokenState, expires_ms: int) -> int:
        self._controller.commit([VersionedRecord(token_record(token._replace(expires_ms=expires_ms)))])
        return expires_ms

    def _find(self, secret: bytes) -> TokenState:
        """Return the token with this secret. Raises DelegationTokenAuthDisabledError, DelegationTokenNotFoundError."""
        self._check_enabled()
        tokens = self._controller.image.tokens
        if tokens is not self._indexed:
            known = set(self._by_digest.values())
            self._by_digest = {digest: one for digest, one in self._by_digest.items() if one in tokens}
            self._by_digest |= {digest_of(self.secret_of(one)): one for one in tokens.keys() - known}
            self._indexed = tokens
        found = tokens.get(self._by_digest.get(digest_of(secret), ""))
        if found is None:
            raise DelegationTokenNotFoundError
        return found

    def _is_expired(self, token: TokenState) -> bool:
        return min(token.max_ms, token.expires_ms) < self._now_ms()

    def _check_not_expired(self, token: TokenState) -> None:
        if self._is_expired(token):
            raise DelegationTokenExpiredError

    def _check_enabled(self) -> None:
        if not self.is_enabled:
            raise DelegationTokenAuthDisabledError


def check_may_renew(token: TokenState, requester: str) -> None:
    """Raise DelegationTokenOwnerMismatchError unless the requester owns the token or may renew it."""
    if requester != token.owner and requester not in token.renewers:
        raise DelegationTokenOwnerMismatchError


def derive_credentials(secret: bytes) -> Credentials:
    """Derive the SCRAM credentials of a token's bearer. Any thread; 2 to 6 ms."""
    return dict(_derive_each(base64.b64encode(secret)))


def _derive_each(password: bytes) -> Iterator[tuple[ScramMechanism, ScramState]]:
    for mechanism in ScramMechanism:
        salt = secrets.token_bytes(16)
        salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, MIN_ITERATIONS)
        yield mechanism, derive(mechanism, MIN_ITERATIONS, salt, salted)


def digest_of(secret: bytes) -> bytes:
    """Compute the SHA-256 of a secret."""
    return hashlib.sha256(secret).digest()
