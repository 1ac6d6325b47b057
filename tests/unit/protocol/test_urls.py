"""URLs in messages."""

from __future__ import annotations

import pytest

from tidelog.protocol.urls import HIDDEN, has_login, write_url


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("https://issuer.test/keys", "https://issuer.test/keys"),
        ("https://svc:s3cret@issuer.test:8443/keys?key=s3cret#s3cret", "https://issuer.test:8443/keys"),
        ("http://[::1]:80/", "http://[::1]:80/"),
        ("file:///etc/keys", "file:///etc/keys"),
        ("issuer.test/keys?key=s3cret", "issuer.test/keys"),
        ("https://svc:s3cret@issuer.test:x/keys", HIDDEN),
        ("https://svc:s3cret/2@issuer.test/keys", HIDDEN),
        ("https://svc:2?s3cret@issuer.test/keys", HIDDEN),
        ("https://svc:2#s3cret@issuer.test/keys", HIDDEN),
        ("svc:s3cret@issuer.test", HIDDEN),
        ("https://svc:s3cret@[::1/keys", HIDDEN),
        ("", ""),
    ],
)
def test_a_url_is_written_without_what_may_be_secret(url: str, written: str) -> None:
    assert write_url(url) == written


def test_a_login_is_what_stands_before_the_host() -> None:
    assert has_login("https://svc@issuer.test/")
    assert not has_login("https://issuer.test/a@b?c@d")
