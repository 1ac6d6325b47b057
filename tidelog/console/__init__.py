"""The console: pages for people about one broker, served by its HTTP interface and rendered where it runs.

``local_client`` asks the broker of this process as its caller; ``pages`` turn answers into models, ``rendering`` turns
models into HTML. Read only: no page changes anything.

Imports: tidelog.client, tidelog.broker (admin, find, requests and what they stand on), jinja2 in ``rendering``, aiohttp
in ``site``. Invariants: a page is built in a thread of its own pool; what the loop thread owns is asked there.
"""
