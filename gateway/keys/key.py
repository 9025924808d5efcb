"""One API key as it is stored: everything about it but itself."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Annotated

import msgspec

from gateway.errors import ConfigurationError

PREFIX = "sk-"
SECRET_BYTES = 32
MAX_NAME = 64
MAX_MODEL_NAME = 256

RESERVED_NAMES = ("anonymous", "other")
"""What the metrics call tenants that are none by name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A key's entry in the keys file.

    Args:
        id: What operators call the key by; says nothing about the key itself.
        name: The tenant: in the log line of every request, and shared by a key and its successor.
        sha256: Digest of the key in hexadecimal; in no `repr`.
        models: Public model names the key may use, None for all.
        priority: Kept for admission; higher goes first.
        max_in_flight: Requests the key may have running, None for no limit.
        created: Unix seconds.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^key-[0-9a-f]{8}$")]
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    created: int
    models: tuple[str, ...] | None = None
    priority: int = 0
    max_in_flight: Annotated[int, msgspec.Meta(ge=1)] | None = None

    @property
    def digest(self) -> bytes:
        """What `digest_of` gives for this key."""
        return bytes.fromhex(self.sha256)

    def __repr__(self) -> str:
        return f"ApiKey(id={self.id!r}, name={self.name!r})"


def new_secret() -> str:
    """A new key: 256 random bits, URL-safe, with the prefix that secret scanners look for."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def new_id() -> str:
    """A new key's id; random, so that it tells nothing about the key."""
    return f"key-{secrets.token_hex(4)}"


def digest_of(secret: bytes) -> bytes:
    """
    The digest under which a key is stored and looked up.

    A plain SHA-256 and no slow password hash: those make guessing of weak secrets expensive, and 256 random bits cannot
    be guessed at any speed. It is what lets every request be checked for the price of one hash. A lookup by digest also
    needs no constant-time comparison: whoever times it learns about digests, from which no key can be derived.
    """
    return hashlib.sha256(secret).digest()


def checked_name(name: str) -> str:
    """`name` if it can be a tenant's. Raises ConfigurationError."""
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a key; use 1 to {MAX_NAME} letters, digits, '.', '_' and '-', "
            "with a letter or digit first"
        )
    if name in RESERVED_NAMES:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a key: in the metrics it means requests without a key, or of many tenants "
            "together; use another name"
        )
    return name


def checked_models(models: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """`models` without repetitions. Raises ConfigurationError for what no model can be called."""
    for model in models or ():
        if not model or len(model) > MAX_MODEL_NAME or not model.isprintable():
            raise ConfigurationError(f"{model!r} cannot be a model's name: 1 to {MAX_MODEL_NAME} printable characters")
    return tuple(dict.fromkeys(models)) if models else None
