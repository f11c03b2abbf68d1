"""Signatures of what is sent to webhooks, as the Standard Webhooks specification has them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

_BASE64 = "whsec_"


def signing_key(secret: str) -> bytes:
    """The key of a secret: of `whsec_…` what its base64 says, else its own bytes.

    Raises ValueError, without the secret in it, where there is none.
    """
    if not secret.startswith(_BASE64):
        key = secret.encode()
    else:
        try:
            key = base64.b64decode(secret.removeprefix(_BASE64), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("after `whsec_` comes base64, with its padding") from None
    if not key:
        raise ValueError("a secret is empty")
    return key


def signed(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a message. Each key signs, so that a receiver who knows any one of them can verify.

    timestamp: when it is sent, in Unix seconds.
    """
    content = f"{message_id}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
