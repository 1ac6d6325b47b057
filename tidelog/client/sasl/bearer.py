"""Bearer tokens of a client, from a file or from an issuer, configured with the keys of Kafka's clients.

sasl.oauthbearer.token.endpoint.url                    a file:/// URL, read at each login, so that another program may
                                                       renew the token; or the issuer's https: URL (http: only on this
                                                       machine), asked by the grant client_credentials of RFC 6749
sasl.oauthbearer.client.credentials.client.id          the client's id, for an issuer
sasl.oauthbearer.client.credentials.client.secret      the client's secret, for an issuer
sasl.oauthbearer.scope                                 the scope to request, for an issuer; optional
sasl.oauthbearer.header.urlencode                      true: id and secret are encoded for a URL in the Authorization
                                                       header, as RFC 6749 wants it; default false, as in Kafka
sasl.login.callback.handler.class                      optional: only Kafka's OAuthBearerLoginCallbackHandler
sasl.jaas.config                                       Kafka's OAuthBearerLoginModule: clientId, clientSecret and scope
                                                       are used if the keys above are missing. Only here, not as a
                                                       property: ssl.truststore.location, a PEM file of certificates
                                                       that are trusted for the issuer
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING

from tidelog.client.trust import build_context, read_trusted
from tidelog.client.wire import ClientError, SettingsError
from tidelog.protocol.urls import has_login, write_url

if TYPE_CHECKING:
    import ssl
    from email.message import Message
    from http.client import HTTPResponse
    from urllib.request import OpenerDirector, Request

OAUTHBEARER = "OAUTHBEARER"
URL_KEY = "sasl.oauthbearer.token.endpoint.url"
ID_KEY = "sasl.oauthbearer.client.credentials.client.id"
SECRET_KEY = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE_KEY = "sasl.oauthbearer.scope"
ENCODING_KEY = "sasl.oauthbearer.header.urlencode"
HANDLER_KEY = "sasl.login.callback.handler.class"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
KEYS = frozenset({URL_KEY, ID_KEY, SECRET_KEY, SCOPE_KEY, ENCODING_KEY, HANDLER_KEY})
"""Keys that only this mechanism has; ``credentials.KEYS`` has those of all mechanisms."""
MAX_BYTES = 64 * 1024
"""Limit of a token file or an issuer's response. A longer one gives no token."""
TIMEOUT_S = 10.0
_TOKEN = re.compile(r"[-_.a-zA-Z0-9]+")


@dataclass(frozen=True, slots=True)
class BearerCredentials:
    """The source of a client's tokens."""

    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    encodes_login: bool = False
    """True if id and secret are encoded for a URL in the Authorization header."""
    authority: str | None = None
    """File of the certificates that are trusted for the issuer; None: the system's certificates."""
    mechanism: str = OAUTHBEARER
    user: str = "the bearer of a token"
    """Text for messages: the user's name is in the token, which only the broker reads."""

    def fetch_token(self) -> str:
        """Fetch the token for one login. Raises ClientError, whose message has neither token nor secret."""
        try:
            text = self._read_file() if self.url.startswith("file:") else self._ask()
        except (OSError, ValueError, RecursionError) as error:
            raise ClientError(f"{write_url(self.url)} gives no token: {error}") from error
        if not _TOKEN.fullmatch(text):
            raise ClientError(f"{write_url(self.url)} gives no token: its content is not a token")
        return text

    def _read_file(self) -> str:
        """Read the token from a file. Raises OSError, ValueError."""
        from urllib.parse import unquote, urlsplit

        with open(unquote(urlsplit(self.url).path), "rb") as file:
            return _read_limited(file).decode("ascii").strip()

    def _ask(self) -> str:
        """Ask the issuer for a token; return an empty text if the response has none.

        Raises ClientError, OSError, ValueError, RecursionError.
        """
        from http.client import HTTPException
        from urllib.error import HTTPError

        try:
            with self._opener().open(self._request()) as response:
                answer = json.loads(_read_limited(response))
        except HTTPError as error:
            error.close()
            raise
        except HTTPException as error:
            raise ValueError(type(error).__name__) from error
        token = answer.get("access_token") if isinstance(answer, dict) else None
        return token if isinstance(token, str) else ""

    def _request(self) -> Request:
        from urllib.parse import quote_plus, urlencode
        from urllib.request import Request

        fields = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        words = (self.client_id, self.client_secret)
        login = ":".join(map(quote_plus, words) if self.encodes_login else words)
        header = f"Basic {base64.b64encode(login.encode()).decode()}"
        return Request(self.url, urlencode(fields).encode(), {"Authorization": header})

    def context(self) -> ssl.SSLContext:
        """Build the TLS context for the issuer. Raises ClientError, OSError."""
        return build_context(read_trusted(self.authority, None))

    def _opener(self) -> OpenerDirector:
        """Build an opener that sends the secret only to the URL: without redirects, and through a proxy only inside
        TLS. All that it does has one deadline."""
        from urllib.request import (
            HTTPHandler,
            HTTPRedirectHandler,
            HTTPSHandler,
            ProxyHandler,
            build_opener,
            getproxies,
        )

        from tidelog.broker.security.timed_http import Deadline, TimedConnection, TimedTlsConnection

        class NoRedirects(HTTPRedirectHandler):
            def redirect_request(
                self, req: Request, fp: object, code: int, msg: str, headers: Message, newurl: str
            ) -> None:
                """Return None: redirects are not followed."""

        class Plain(HTTPHandler):
            def http_open(self, req: Request) -> HTTPResponse:
                return self.do_open(partial(TimedConnection, deadline), req)

        class Encrypted(HTTPSHandler):
            def https_open(self, req: Request) -> HTTPResponse:
                return self.do_open(partial(TimedTlsConnection, deadline), req, context=context)

        deadline, context = Deadline(TIMEOUT_S), self.context()
        proxies = ProxyHandler({kind: proxy for kind, proxy in getproxies().items() if kind == "https"})
        return build_opener(Plain(), Encrypted(context=context), proxies, NoRedirects())


def _read_limited(file: IO[bytes]) -> bytes:
    """Read a file or response to its end. Raises ValueError above MAX_BYTES, OSError."""
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return data


def read_bearer_credentials(properties: Mapping[str, str], options: Mapping[str, str]) -> BearerCredentials:
    """Read the source of tokens from a profile and its JAAS text. Raises SettingsError, whose message has no secret."""
    handler = properties.get(HANDLER_KEY, HANDLER)
    if handler != HANDLER:
        raise SettingsError(f"{HANDLER_KEY}={handler}: expected {HANDLER}")
    found = BearerCredentials(
        properties.get(URL_KEY, ""),
        properties.get(ID_KEY) or options.get("clientId", ""),
        properties.get(SECRET_KEY) or options.get("clientSecret", ""),
        properties.get(SCOPE_KEY) or options.get("scope", ""),
        read_switch(properties, ENCODING_KEY),
        options.get("ssl.truststore.location"),
    )
    if found.url.startswith("file:///"):
        return found
    if not is_safe(found.url):
        raise SettingsError(
            f"{URL_KEY}={write_url(found.url)}: expected a file:/// or https: URL, or http: on this machine, "
            "without a login"
        )
    if not found.client_id or not found.client_secret:
        raise SettingsError(f"no client id or no secret for {write_url(found.url)}: expected {ID_KEY} and {SECRET_KEY}")
    return found


def read_switch(properties: Mapping[str, str], key: str) -> bool:
    """Read a key that is true or false; false if it is missing. Raises SettingsError."""
    text = properties.get(key, "false").strip().lower()
    if text not in ("true", "false"):
        raise SettingsError(f"{key}={text}: expected true or false")
    return text == "true"


def is_safe(url: str) -> bool:
    """Return whether a secret may be sent to a URL: by https, or by http to this machine, without a login in it."""
    from urllib.parse import urlsplit

    from tidelog.broker.security.policy import is_loopback

    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    host = "" if has_login(url) else parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))
