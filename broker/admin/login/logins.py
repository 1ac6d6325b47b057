"""Logins to the admin interface: they identify the sender of a request by a password, a token or a certificate.

The passwords from one address are checked one after the other. The answer to a wrong password is delayed, and longer if
there are many in a second. So guessing costs the broker little. Users at that address whose password was checked
recently do not wait, and neither do bearer tokens, which are too long to guess. Loop thread only.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from aiohttp import web

from tidelog.broker.admin.login.access import BASIC, BEARER, MTLS, methods_of
from tidelog.broker.admin.login.bearers import Bearers, UnknownBearerError
from tidelog.broker.admin.login.passwords import Passwords
from tidelog.broker.broker import Broker
from tidelog.broker.config.keys.admin import ADMIN_LISTENER
from tidelog.broker.controller.clients.scram_credentials import ScramCredentials
from tidelog.broker.network.newcomers import FailedLogins
from tidelog.broker.security.audit import record
from tidelog.broker.security.client_address import source_of
from tidelog.broker.security.principal import ANONYMOUS, USER, Principal
from tidelog.broker.security.tls.listener import TlsListener
from tidelog.broker.security.tls.principal_rules import NoRuleMatchesError
from tidelog.broker.security.tls.subject_names import MalformedCertificateError

FAILED_DELAY_MS = 100
"""Delay of the answer to a failed login; after many from one address, the delay doubles with each, up to five
seconds."""
_CHALLENGES = {BASIC: 'Basic realm="tidelog", charset="UTF-8"', BEARER: "Bearer"}


class Caller(NamedTuple):
    """The sender of a request; a token may allow its user only to read."""

    principal: Principal
    may_write: bool = True


class LoginError(Exception):
    """A login that failed: the method, the user's name as given, and why."""

    def __init__(self, method: str, user: str, reason: str) -> None:
        super().__init__(reason)
        self.method = method
        self.user = user


class Logins:
    """The login methods of an interface, with their users."""

    def __init__(self, broker: Broker, tls: Callable[[], TlsListener] | None, listener: str = ADMIN_LISTENER) -> None:
        """``tls`` is the interface's own TLS, ``listener`` its key. Raises ConfigError."""
        config = broker.config
        self.methods = methods_of(config, listener)
        self._tls = tls
        self._time = broker.time
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="admin-login")
        self._bearers = Bearers(config) if BEARER in self.methods else None
        self._passwords = self._build_passwords(broker) if BASIC in self.methods else None
        self._failed = FailedLogins(lambda: config.get_int("failed.authentication.rate"), broker.time.monotonic_ms)
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()

    def _build_passwords(self, broker: Broker) -> Passwords:
        users = ScramCredentials(broker.controller)
        return Passwords(broker.config, users.get, broker.time.monotonic_ms, self._executor, users.usual_iterations)

    def close(self) -> None:
        """End the threads that check passwords and tokens."""
        if self._bearers is not None:
            self._bearers.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def challenges(self) -> list[str]:
        """The values of the response header WWW-Authenticate."""
        return [challenge for method, challenge in _CHALLENGES.items() if method in self.methods]

    def has_credentials(self, request: web.Request) -> bool:
        """Return whether a request has a login or a certificate, valid or not."""
        return "Authorization" in request.headers or self._certificate_of(request) is not None

    async def identify(self, request: web.Request) -> Caller | None:
        """Return the sender of a request; None without a login, after a wrong one, or if the client disconnected."""
        if not self.methods:
            return Caller(ANONYMOUS)
        try:
            known = self._find_known(request)
        except LoginError as error:
            await self._refuse(request, error)
            return None
        if known is not None or "Authorization" not in request.headers:
            return known
        is_guessable = authorization_of(request)[0] == BASIC
        return await (self._wait_for_turn(request) if is_guessable else self._check(request))

    def _find_known(self, request: web.Request) -> Caller | None:
        """Find the sender by a certificate, or by a password that was checked recently. Raises LoginError."""
        certificate = self._certificate_of(request)
        if certificate is not None and self._tls is not None:
            try:
                return Caller(self._tls().principal_of(certificate))
            except (NoRuleMatchesError, MalformedCertificateError) as error:
                raise LoginError(MTLS, "", str(error)) from error
        scheme, value = authorization_of(request)
        if scheme == BASIC and self._passwords is not None:
            user, password = parse_basic(value)
            source = source_of(request.remote or "")
            return Caller(Principal(USER, user)) if self._passwords.is_known(source, user, password) else None
        return None

    async def _wait_for_turn(self, request: web.Request) -> Caller | None:
        """Check a password once the earlier passwords from its address are checked and their answers' delays are
        over."""
        source = source_of(request.remote or "")
        lock = self._turns.setdefault(source, asyncio.Lock())
        self._waiting[source] += 1
        try:
            async with lock:
                return await self._check(request) if request.transport is not None else None
        finally:
            self._waiting[source] -= 1
            if not self._waiting[source]:
                del self._waiting[source], self._turns[source]

    async def _check(self, request: web.Request) -> Caller | None:
        """Check a password or a token. The answer to a wrong one is delayed."""
        scheme, value = authorization_of(request)
        try:
            if scheme == BASIC and self._passwords is not None:
                return await self._check_password(self._passwords, source_of(request.remote or ""), *parse_basic(value))
            if scheme == BEARER and self._bearers is not None:
                return await self._check_token(self._bearers, value)
            raise LoginError(scheme, "", "this login method is not configured")
        except LoginError as error:
            await self._refuse(request, error)
            return None

    async def _check_password(self, passwords: Passwords, source: str, user: str, password: str) -> Caller:
        if not await passwords.check(source, user, password):
            raise LoginError(BASIC, user, "invalid username or password")
        return Caller(Principal(USER, user))

    async def _check_token(self, bearers: Bearers, value: str) -> Caller:
        try:
            now_s = self._time.milliseconds() / 1000
            found = await asyncio.get_running_loop().run_in_executor(self._executor, bearers.find, value, now_s)
        except UnknownBearerError as error:
            raise LoginError(BEARER, "", str(error)) from error
        return Caller(Principal(USER, found.user), found.may_write)

    async def _refuse(self, request: web.Request, error: LoginError) -> None:
        host = request.remote or ""
        record("login failed", str(error), listener="admin", address=host, mechanism=error.method,
               user=error.user)  # fmt: skip
        await asyncio.sleep(self._failed.delay_ms(host, FAILED_DELAY_MS) / 1000)

    def _certificate_of(self, request: web.Request) -> bytes | None:
        """Return the client's certificate (DER), which TLS has verified by the truststore; None without one."""
        found = None if request.transport is None else request.transport.get_extra_info("ssl_object")
        if MTLS not in self.methods or not isinstance(found, ssl.SSLObject):
            return None
        return found.getpeercert(binary_form=True)


def authorization_of(request: web.Request) -> tuple[str, str]:
    """Return the scheme of the Authorization header, in lower case, and its value; both empty unless there is exactly
    one such header."""
    values = request.headers.getall("Authorization", [])
    scheme, _, value = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return scheme.lower(), value.strip()


def parse_basic(value: str) -> tuple[str, str]:
    """Parse user and password (RFC 7617). Raises LoginError."""
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        raise LoginError(BASIC, "", "not base64 of UTF-8") from None
    if not (user and colon and password):
        raise LoginError(BASIC, user, "username or password not specified")
    return user, password
