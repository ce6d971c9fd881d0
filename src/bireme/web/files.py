"""Our own scripts, styles and images: read once at the start, served from memory.

Their addresses hold a sum of their contents, so that browsers keep them for ever and never have an old one.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

STATIC = Path(__file__).parent / "static"
_MEDIA = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOR_EVER = "public, max-age=31536000, immutable"


class Files:
    def __init__(self) -> None:
        self._files = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir()) if path.suffix in _MEDIA}
        self._packed = {name: gzip.compress(text, mtime=0) for name, text in self._files.items()}
        self.version = hashlib.sha256(b"".join(self._files.values())).hexdigest()[:12]
        """In the addresses of all: scripts import each other by relative names, and so of the same version."""

    async def answer(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files or request.path_params["version"] != self.version:
            return PlainTextResponse("there is no such file\n", 404)
        headers = {"cache-control": _FOR_EVER, "vary": "accept-encoding"}
        media = _MEDIA[Path(name).suffix]
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self._packed[name], headers={**headers, "content-encoding": "gzip"}, media_type=media)
        return Response(self._files[name], headers=headers, media_type=media)
