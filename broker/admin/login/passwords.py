"""Check of users' passwords for the admin interface, by the users of PLAIN's JAAS configuration and by SCRAM
credentials.

SCRAM stores no passwords: a password is proved by deriving the stored key from it, which takes milliseconds in a
thread. A proof is remembered under a keyed digest of address, user and password. It is forgotten when it has not been
used for a minute or the user's credential changes. The check of an unknown user takes as long as that of a known one: a
key is derived for every mechanism, even if the user has a credential for only one. Loop thread only.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from tidelog.broker.config.broker_config import SASL_PROTOCOLS, BrokerConfig
from tidelog.broker.config.keys.security import listener_values, mechanism_values
from tidelog.broker.controller.clients.scram_credentials import MIN_ITERATIONS, ScramMechanism, derive
from tidelog.broker.metadata.metadata_image import ScramState
from tidelog.broker.security.sasl.jaas import JAAS_KEY, parse_jaas
from tidelog.broker.security.sasl.listener import plain_users
from tidelog.broker.security.sasl.plain import PLAIN, PlainUsers
from tidelog.broker.security.sasl.scram import Credentials, UsualIterations

REMEMBERED_MS = 60_000
"""Time for which a proof is remembered after its last use."""
MAX_REMEMBERED = 1_000
"""Largest number of proofs that are remembered; then all are forgotten."""


class Passwords:
    """The passwords of a broker's users."""

    def __init__(
        self,
        config: BrokerConfig,
        credentials: Credentials,
        monotonic_ms: Callable[[], float],
        executor: Executor,
        usual_iterations: UsualIterations,
    ) -> None:
        """``usual_iterations`` returns the number of iterations for unknown users. Raises ConfigError."""
        self._plain = all_plain_users(config)
        self._credentials = credentials
        self._usual_iterations = usual_iterations
        self._monotonic_ms = monotonic_ms
        self._key = secrets.token_bytes(32)
        self._proved: dict[bytes, tuple[float, ScramState | PlainUsers]] = {}
        """Digest of address, user and password -> expiry of the proof, by the monotonic clock, and the credential that
        proved it."""
        self._executor = executor
        nothing = bytes(32)
        self._no_credential = ScramState(secrets.token_bytes(16), nothing, nothing, MIN_ITERATIONS)

    def is_known(self, source: str, user: str, password: str) -> bool:
        """Return whether the user has proved this password from this source recently; the call renews the proof."""
        digest, now_ms = self._digest(source, user, password), self._monotonic_ms()
        expires_ms, proof = self._proved.get(digest, (0.0, self._no_credential))
        if now_ms >= expires_ms:
            return False
        if not isinstance(proof, PlainUsers) and all(proof is not one for _, one in self._candidates(user)):
            return False
        self._proved[digest] = (now_ms + REMEMBERED_MS, proof)
        return True

    async def check(self, source: str, user: str, password: str) -> bool:
        """Return whether this is the user's password."""
        if self.is_known(source, user, password):
            return True
        proof = self._prove_plain(user, password) or await self._prove_scram(user, password)
        if proof is None:
            return False
        if len(self._proved) >= MAX_REMEMBERED:
            self._proved.clear()
        self._proved[self._digest(source, user, password)] = (self._monotonic_ms() + REMEMBERED_MS, proof)
        return True

    def _prove_plain(self, user: str, password: str) -> PlainUsers | None:
        """Return a listener's PLAIN users if this user with this password is among them."""
        return next((users for users in self._plain if users.is_password(user, password)), None)

    async def _prove_scram(self, user: str, password: str) -> ScramState | None:
        """Return the credential of the user that the password matches, or None."""
        known = dict(self._candidates(user))
        candidates = [(mechanism, known.get(mechanism) or self._decoy(mechanism)) for mechanism in ScramMechanism]
        work = partial(find_proved, password, candidates)
        found = await asyncio.get_running_loop().run_in_executor(self._executor, work)
        # The credential may have changed, or the user may be gone, while the thread worked.
        return found if any(found is one for _, one in self._candidates(user)) else None

    def _decoy(self, mechanism: ScramMechanism) -> ScramState:
        """Make a credential that no password matches, and that takes as long to check as most users' credentials."""
        return self._no_credential._replace(iterations=self._usual_iterations(mechanism))

    def _candidates(self, user: str) -> list[tuple[ScramMechanism, ScramState]]:
        found = [(mechanism, self._credentials(user, mechanism)) for mechanism in ScramMechanism]
        return [(mechanism, credential) for mechanism, credential in found if credential is not None]

    def _digest(self, source: str, user: str, password: str) -> bytes:
        text = f"{source} {len(user)}:{user}{password}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=self._key, digest_size=32).digest()


def find_proved(password: str, candidates: list[tuple[ScramMechanism, ScramState]]) -> ScramState | None:
    """Find the first credential that the password matches. Any thread; takes 1 to 11 ms."""
    secret = password.encode("utf-8", "surrogatepass")
    for mechanism, known in candidates:
        salted = hashlib.pbkdf2_hmac(mechanism.hash_name, secret, known.salt, known.iterations)
        if hmac.compare_digest(derive(mechanism, known.iterations, known.salt, salted).stored_key, known.stored_key):
            return known
    return None


def all_plain_users(config: BrokerConfig) -> list[PlainUsers]:
    """Collect the users of every listener that accepts PLAIN. Raises ConfigError."""
    texts, found = config.listener_texts(), []
    for endpoint in config.listeners:
        name = endpoint.listener_name
        is_sasl = endpoint.security_protocol in SASL_PROTOCOLS
        if is_sasl and PLAIN in listener_values(texts, name)["sasl.enabled.mechanisms"]:
            jaas = mechanism_values(texts, name, PLAIN)[JAAS_KEY]
            if jaas is not None:
                found.append(plain_users(parse_jaas(jaas)))
    return found
