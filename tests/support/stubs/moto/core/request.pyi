from collections.abc import Mapping
from typing import Any

class Request:
    from_wsgi_server: bool
    headers: Mapping[str, str]
    raw_path: str
    raw_url: str
    def __init__(self, environ: dict[str, Any]) -> None: ...
