"""W3C Trace Context: the `traceparent` that travels with a job."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def traceparent(values: Sequence[str]) -> str | None:
    """The header's value in version 00; None where it is missing, malformed or came twice, as the standard says."""
    match = _TRACEPARENT.fullmatch(values[0].strip()) if len(values) == 1 else None
    if match is None:
        return None
    version, trace, parent, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not trace.strip("0") or not parent.strip("0"):
        return None
    return f"00-{trace}-{parent}-{flags}"
