"""Revocation lists (CRLs) of a truststore: the part of the other side's certificate chain that they can verify.

OpenSSL checks either the other side's own certificate, or its whole chain. For the whole chain it needs a list of every
authority in the chain, and refuses a chain if one is missing. So the whole chain is checked only if the store has the
list of each authority that issued one of the store's certificates. A list of changes to another list (delta CRL) is
refused, as OpenSSL would take it for a complete one.
"""

from __future__ import annotations

import re
import ssl
from base64 import b64decode

from tidelog.broker.security.tls.subject_names import MalformedCertificateError, issuer_of, issuer_of_list

_BLOCK = re.compile(r"-----BEGIN (CERTIFICATE|X509 CRL)-----(.*?)-----END \1-----", re.DOTALL)
_DELTA_INDICATOR = bytes.fromhex("0603551d1b")
"""DER form of the object id of a delta CRL's extension, 2.5.29.27."""


def revocation_flags(trusted: str) -> ssl.VerifyFlags:
    """Return the checks that the revocation lists of a store in PEM form allow. Raises MalformedCertificateError."""
    issuers: dict[str, set[bytes]] = {"CERTIFICATE": set(), "X509 CRL": set()}
    for kind, text in _BLOCK.findall(trusted):
        try:
            der = b64decode(text)
        except ValueError as error:  # also for characters beyond ASCII
            raise MalformedCertificateError("a certificate or a list cannot be read") from error
        if kind == "X509 CRL" and _DELTA_INDICATOR in der:
            raise MalformedCertificateError("a delta CRL is not a complete revocation list")
        issuers[kind].add(issuer_of(der) if kind == "CERTIFICATE" else issuer_of_list(der))
    if not issuers["X509 CRL"]:
        return ssl.VerifyFlags(0)
    is_complete = issuers["CERTIFICATE"] <= issuers["X509 CRL"]
    return ssl.VERIFY_CRL_CHECK_CHAIN if is_complete else ssl.VERIFY_CRL_CHECK_LEAF
