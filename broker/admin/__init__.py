"""The admin interface over HTTP: its listener, pages, searches for records, and metrics in Prometheus' format.

Imports: ``tidelog.broker.network`` and the layers below; not ``handlers`` or ``adoption``. Beside these modules only
the schema registry, the laboratory and the console import aiohttp.
Invariant: aiohttp is imported with the first connection; every request passes ``guard`` before a page sees it.
"""
