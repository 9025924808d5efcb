"""An API key for tests, and the requests that present one."""

from __future__ import annotations

import hashlib

from gateway.api.authentication import KeyAuthenticator
from gateway.keys import ApiKey

SECRET = "sk-test-4f1d2c8a6b7e"


def authenticator(*, models: tuple[str, ...] | None = None) -> KeyAuthenticator:
    """Knows `SECRET` and nothing else."""
    known = KeyAuthenticator(anonymous_allowed=False)
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    known.replace([ApiKey("key-00000001", "tenant-a", digest, 1, models)])
    return known


def bearer(secret: str = SECRET) -> dict[str, str]:
    """The usual header."""
    return {"authorization": f"Bearer {secret}"}
