"""
The keys file: read by gateway processes and `gateway up`, written by `gateway keys`.

Once it exists a key is required everywhere, also when it holds none any more: revoking the last key must not open the
gateway to everybody. Deleting the file and starting anew does.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gateway.clock import Clock
from gateway.durable import write_atomically
from gateway.errors import EnvironmentProblem, GatewayError
from gateway.keys.key import ApiKey, checked_models, checked_name, digest_of, new_id, new_secret

SCHEMA_VERSION = 1


class KeysUnreadable(EnvironmentProblem):
    """The keys file is there and cannot be used; nothing was changed."""


class NoSuchKey(GatewayError):
    """No key, or more than one, is meant by an id or a name."""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # Unknown fields are refused: writing the file back would lose them.
    version: int
    keys: tuple[ApiKey, ...]


class _Version(msgspec.Struct):
    version: int


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key: its entry, and the key itself, which exists nowhere else."""

    key: ApiKey
    secret: str = field(repr=False)


def read_keys(path: Path) -> tuple[ApiKey, ...] | None:
    """
    All keys in the file, oldest first; None when there is no file.

    Raises:
        KeysUnreadable: It cannot be read, or is not what this release writes.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise KeysUnreadable(
            f"the keys file {path} cannot be read ({exc.strerror})", fix=f"chmod 600 {path}, as its owner"
        ) from exc
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != SCHEMA_VERSION:
            raise KeysUnreadable(
                f"the keys file {path} has version {version}, this release knows version {SCHEMA_VERSION}",
                fix="run the release that wrote it, or a newer one",
            )
        keys = msgspec.json.decode(data, type=_Document).keys
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise KeysUnreadable(
            f"the keys file {path} is not what `gateway keys` writes ({exc})",
            fix=f"restore it from a backup, or move it away (mv {path} {path}.broken) and create the keys anew",
        ) from None
    for unique in ("id", "sha256"):
        if len({getattr(key, unique) for key in keys}) != len(keys):
            raise KeysUnreadable(
                f"the keys file {path} has two keys with the same {unique}", fix="remove one of them, or restore it"
            )
    return keys


def count_keys(path: Path) -> int:
    """How many keys there are, 0 without a file. Raises KeysUnreadable."""
    return len(read_keys(path) or ())


class KeysFile:
    """
    Changes the keys file, one process at a time, all or nothing.

    Args:
        path: The file; its directory exists and is private.
        clock: For the time of creation.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def create(
        self,
        name: str,
        *,
        models: tuple[str, ...] | None = None,
        priority: int = 0,
        max_in_flight: int | None = None,
    ) -> CreatedKey:
        """
        Store a new key.

        A name may be given again: a key and its successor belong to the same tenant until the old one is revoked.

        Raises:
            ConfigurationError: The name or a model cannot be.
            KeysUnreadable: The file cannot be used.
        """
        name, models = checked_name(name), checked_models(models)
        with self._locked():
            keys = read_keys(self._path) or ()
            taken = {key.id for key in keys}
            secret, key_id = new_secret(), new_id()
            while key_id in taken:
                key_id = new_id()
            key = ApiKey(
                id=key_id,
                name=name,
                sha256=digest_of(secret.encode()).hex(),
                created=int(self._clock.unix()),
                models=models,
                priority=priority,
                max_in_flight=max_in_flight,
            )
            self._write((*keys, key))
        return CreatedKey(key, secret)

    def revoke(self, id_or_name: str) -> tuple[ApiKey, int]:
        """
        Remove a key; it and how many are left.

        Raises:
            NoSuchKey: None has that id or name, or several have the name.
            KeysUnreadable: The file cannot be used.
        """
        if read_keys(self._path) is None:
            raise NoSuchKey(f"there is no key {id_or_name!r}, nor any other")
        with self._locked():
            keys = read_keys(self._path) or ()
            meant = [key for key in keys if key.id == id_or_name] or [key for key in keys if key.name == id_or_name]
            if not meant:
                raise NoSuchKey(f"there is no key {id_or_name!r}; `gateway keys list` shows them all")
            if len(meant) > 1:
                ids = ", ".join(key.id for key in meant)
                raise NoSuchKey(f"{len(meant)} keys have the name {id_or_name!r}; revoke one by its id: {ids}")
            left = tuple(key for key in keys if key.id != meant[0].id)
            self._write(left)
        return meant[0], len(left)

    def _write(self, keys: tuple[ApiKey, ...]) -> None:
        data = msgspec.json.format(msgspec.json.encode(_Document(SCHEMA_VERSION, keys)), indent=1)
        try:
            write_atomically(self._path, data + b"\n")
        except OSError as exc:
            raise _unwritable(self._path, exc) from exc

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A file of its own: the keys file is replaced by every change, and a lock stays with the old one.
        lock = self._path.with_suffix(".lock")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise _unwritable(lock, exc) from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _unwritable(path: Path, exc: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{path} cannot be written ({exc.strerror}); no key was changed",
        fix="make room or set GATEWAY_STATE_DIR to a folder of yours",
    )
