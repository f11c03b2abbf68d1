"""What keeps a command from doing its work, told in a sentence that says what to do."""

from __future__ import annotations

FAILED, USAGE, UNREACHABLE, NO_CHECKPOINT, PORT_TAKEN, UNVERIFIABLE, INTERRUPTED = 1, 2, 3, 4, 5, 6, 130


class Trouble(Exception):
    """Ends the command with `code`; `str()` is for the user."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code
