"""HTTP ranges and conditional requests (RFC 9110) over an audio file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import Response

from api.audio_files import AudioFile
from api.errors import ApiError, quoted

_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes [start, stop) of a file, and how they are announced."""

    file: AudioFile
    start: int
    stop: int
    status: int
    headers: dict[str, str]


def requested(request: Request, file: AudioFile, filename: str) -> Part | Response:
    """The part that a request asks for, or the 304 that it deserves; raises ApiError 416.

    Several ranges at once are answered with the whole file, as the standard permits.
    """
    headers = {
        "ETag": file.etag,
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{filename}"',
        "Cache-Control": "private, no-cache",
    }
    if _matches(request.headers.get("if-none-match"), file.etag):
        return Response(status_code=304, headers=headers)
    bounds = None
    if request.headers.get("if-range", file.etag) == file.etag:
        bounds = _bounds(request.headers.get("range"), file.size)
    if bounds is None:
        return Part(file, 0, file.size, 200, {**headers, "Content-Length": str(file.size)})
    start, stop = bounds
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
    headers["Content-Length"] = str(stop - start)
    return Part(file, start, stop, 206, headers)


def _matches(if_none_match: str | None, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
    return etag in tags or "*" in tags


def _bounds(header: str | None, size: int) -> tuple[int, int] | None:
    """[start, stop) of a Range header; None for none, and for one that is to be ignored."""
    match = _RANGE.fullmatch((header or "").strip())
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if first and last and int(last) < int(first):
        return None
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= size or (not first and int(last) == 0):
        raise ApiError(
            416, f"The file has {size} bytes, and {quoted(header)} asks for none of them.",
            code="range_not_satisfiable", param="Range", headers={"Content-Range": f"bytes */{size}"},
        )  # fmt: skip
    return start, stop
