"""The roles' log, on standard error."""

from __future__ import annotations

import logging
import warnings


def start_logging(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # The vocoder's authors still use torch's old weight_norm; nobody who serves it can change that.
    warnings.filterwarnings("ignore", message=".*weight_norm.* is deprecated", category=FutureWarning)
    logging.getLogger("httpx").setLevel(logging.WARNING)
