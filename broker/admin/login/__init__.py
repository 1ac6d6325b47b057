"""Logins of the admin interface: the configured ways, passwords, tokens, and who a request is from.

Imports: ``tidelog.broker.network``, ``security``, ``controller`` and ``config``, and the layers below; ``logins`` alone
also aiohttp, and no module of the pages.
"""
