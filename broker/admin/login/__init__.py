"""Logins of the admin interface: the configured methods, passwords, tokens, and the identity of a request's sender.

Imports: ``tidelog.broker.broker``, ``network``, ``security``, ``controller``, ``config`` and ``metadata``, but no
module of the pages. Only ``logins`` imports aiohttp.
"""
