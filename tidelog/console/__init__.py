"""The console: web pages about one broker, served by its admin interface and rendered in its process.

``local_client`` sends requests to the broker of this process in the caller's name; ``pages`` turn responses into
models, ``rendering`` turns models into HTML. The console is read-only: no page changes anything.

Imports: tidelog.client, tidelog.broker (admin, find, requests and the layers below), jinja2 in ``rendering``, aiohttp
in ``site``; in ``schemas`` also the broker's schema registry, and values and job errors of tidelog.pipeline.
Invariants: a page is built in a thread of the console's pool; state of the event loop is read in the loop's thread.
"""
