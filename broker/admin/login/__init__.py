"""Logins of the admin interface: the configured methods, passwords, tokens, and the identity of a request's sender.

Imports: ``tidelog.broker.network``, ``security``, ``controller`` and ``config``, and the layers below, but no module of
the pages. Only ``logins`` imports aiohttp.
"""
