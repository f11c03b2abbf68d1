"""What families' options have in common."""

from __future__ import annotations

from typing import Any


def switch(settings: dict[str, Any], name: str, default: bool) -> bool:
    """An option that is true or false. Raises ValueError for any other."""
    chosen = settings.get(name, default)
    if not isinstance(chosen, bool):
        raise ValueError(f"{name} must be true or false, got {chosen!r}")
    return chosen
