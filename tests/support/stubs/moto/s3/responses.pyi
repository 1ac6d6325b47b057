from typing import Any

from moto.core.request import Request

Answer = tuple[int, dict[str, Any], str | bytes]

class S3Response:
    @classmethod
    def key_dispatch(cls, request: Request, full_url: str, headers: dict[str, str]) -> Answer: ...
    @classmethod
    def ambiguous_dispatch(cls, request: Request, full_url: str, headers: dict[str, str]) -> Answer: ...
