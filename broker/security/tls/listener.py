"""One listener that encrypts: its present context, and the principal of a client's certificate."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from tidelog.broker.config.security_keys import listener_values
from tidelog.broker.security.principal import ANONYMOUS, USER, Principal
from tidelog.broker.security.tls.contexts import build_context
from tidelog.broker.security.tls.principal_rules import PrincipalRules
from tidelog.broker.security.tls.subject_names import subject_of


class TlsListener:
    """TLS as one listener speaks it. ``context`` is replaced whole: a handshake keeps the one it began with."""

    def __init__(self, name: str, texts: Mapping[str, str]) -> None:
        """Raises ConfigError."""
        self.name = name
        self.values: dict[str, Any] = listener_values(texts, name)
        self.context: ssl.SSLContext = build_context(self.values)
        self._rules = PrincipalRules(self.values["ssl.principal.mapping.rules"])

    def principal_of(self, certificate: bytes | None) -> Principal:
        """The bearer of a checked certificate. Raises NoRuleMatchesError, MalformedCertificateError."""
        return Principal(USER, self._rules.name_of(subject_of(certificate))) if certificate else ANONYMOUS
