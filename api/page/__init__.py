"""The page at `/`: write, press, hear it while it is made. Files of this folder, and nothing from elsewhere."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, Header
from starlette.exceptions import HTTPException
from starlette.responses import Response

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; media-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-cache",  # kept, and asked for anew: a page and modules of two versions never meet
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _File(NamedTuple):
    content: bytes
    media_type: str
    etag: str


def _read() -> dict[str, _File]:
    found = {}
    for path in files(__name__).iterdir():
        if media_type := _MEDIA_TYPES.get(path.name.rpartition(".")[2]):
            content = path.read_bytes()
            found[path.name] = _File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


_FILES = _read()

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def index(if_none_match: str | None = Header(None)) -> Response:
    return _answer(_FILES["index.html"], if_none_match)


@router.api_route("/pipeline", methods=["GET", "HEAD"])
async def pipeline(if_none_match: str | None = Header(None)) -> Response:
    """The operator's page."""
    return _answer(_FILES["pipeline.html"], if_none_match)


@router.api_route("/page/{name}", methods=["GET", "HEAD"])
async def part(name: str, if_none_match: str | None = Header(None)) -> Response:
    """A module, the style or the icon; 404 for what is none of them."""
    if name not in _FILES:
        raise HTTPException(404)
    return _answer(_FILES[name], if_none_match)


def _answer(file: _File, known: str | None) -> Response:
    headers = {**_HEADERS, "ETag": file.etag}
    if known == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
