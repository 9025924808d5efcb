"""The keys file: what it stores, what it refuses, and that no failure costs a key."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.clock import SystemClock
from gateway.errors import ConfigurationError, EnvironmentProblem
from gateway.keys import KeysFile, KeysUnreadable, NoSuchKey, anonymous_allowed, count_keys, digest_of, read_keys


class At:
    """A clock that stands still."""

    def monotonic(self) -> float:
        return 0.0

    def unix(self) -> float:
        return 1_700_000_000.9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def keys(path: Path) -> KeysFile:
    return KeysFile(path, At())


def test_a_key_is_stored_as_its_digest_only(keys: KeysFile, path: Path) -> None:
    """Neither the file, nor anything's repr, has the key; the file is its owner's alone."""
    created = keys.create("acme", models=("b", "a", "b"), priority=-3, max_in_flight=2)
    (stored,) = read_keys(path) or ()

    assert stored == created.key
    assert ("acme", ("b", "a"), -3, 2, 1_700_000_000) == (
        stored.name,
        stored.models,
        stored.priority,
        stored.max_in_flight,
        stored.created,
    )
    assert digest_of(created.secret.encode()) == stored.digest
    assert created.secret.startswith("sk-")
    assert len(created.secret) == len("sk-") + 43, "32 bytes as URL-safe base64"
    assert created.secret not in path.read_text()
    assert created.secret not in repr(created)
    assert stored.sha256 not in repr(created)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


def test_keys_are_all_different(keys: KeysFile) -> None:
    made = [keys.create("same") for _ in range(20)]

    assert 20 == len({created.secret for created in made}) == len({created.key.id for created in made})


def test_no_file_is_not_the_same_as_no_keys(keys: KeysFile, path: Path) -> None:
    """After the last key is revoked the file stays, so that nobody is let in by that."""
    assert read_keys(path) is None
    assert 0 == count_keys(path)
    made = keys.create("acme")

    assert (made.key, 0) == keys.revoke("acme")
    assert () == read_keys(path)
    assert 0 == count_keys(path)


def test_a_key_is_revoked_by_id_and_a_name_only_if_it_is_one_keys(keys: KeysFile, path: Path) -> None:
    """Which of two is meant is not guessed; the message has their ids."""
    old, new, other = keys.create("acme").key, keys.create("acme").key, keys.create("another").key
    with pytest.raises(NoSuchKey, match=f"{old.id}, {new.id}"):
        keys.revoke("acme")
    assert (old, new, other) == read_keys(path)

    assert (old, 2) == keys.revoke(old.id)
    assert (new, 1) == keys.revoke("acme")
    with pytest.raises(NoSuchKey, match="'acme'"):
        keys.revoke("acme")
    assert (other,) == read_keys(path)


def test_revoking_without_a_file_makes_none(keys: KeysFile, tmp_path: Path) -> None:
    with pytest.raises(NoSuchKey):
        keys.revoke("acme")

    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "a b", "-x", ".x", "a" * 65, "a\n", "ä", 'x"', "a/b", "other", "anonymous"])
def test_a_name_fits_a_log_line_and_a_label(keys: KeysFile, path: Path, name: str) -> None:
    """The metrics have two names of their own for tenants."""
    with pytest.raises(ConfigurationError):
        keys.create(name)

    assert not path.exists()


@pytest.mark.parametrize("model", ["", "a\nb", "x" * 257])
def test_a_model_can_be_one(keys: KeysFile, model: str) -> None:
    with pytest.raises(ConfigurationError):
        keys.create("acme", models=("ok", model))


GOOD = {"id": "key-00000001", "name": "a", "sha256": "0" * 64, "created": 1}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"keys":[]}',
        b'{"version":2,"keys":[]}',
        json.dumps({"version": 1, "keys": [{**GOOD, "quota": 1}]}).encode(),
        json.dumps({"version": 1, "keys": [], "more": 1}).encode(),
        json.dumps({"version": 1, "keys": [{**GOOD, "sha256": "sk-CANARY"}]}).encode(),
        json.dumps({"version": 1, "keys": [{**GOOD, "name": "a\nb"}]}).encode(),
        json.dumps({"version": 1, "keys": [{**GOOD, "max_in_flight": 0}]}).encode(),
        json.dumps({"version": 1, "keys": [GOOD, GOOD]}).encode(),
        json.dumps({"version": 1, "keys": [GOOD, {**GOOD, "id": "key-00000002"}]}).encode(),
    ],
    ids=[
        *("empty", "cut", "no-text", "array", "no-version", "newer", "unknown-field", "unknown-member"),
        *("no-digest", "bad-name", "bad-limit", "same-id", "same-digest"),
    ],
)
def test_a_file_that_is_none_of_ours_is_named_and_left_alone(keys: KeysFile, path: Path, content: bytes) -> None:
    """Reading, making and revoking all refuse it, without repeating what is in it."""
    path.write_bytes(content)
    for attempt in (lambda: read_keys(path), lambda: keys.create("b"), lambda: keys.revoke("a")):
        with pytest.raises(KeysUnreadable) as raised:
            attempt()
        assert str(path) in str(raised.value)
        assert raised.value.fix
        assert "CANARY" not in str(raised.value)

    assert content == path.read_bytes()


def test_a_failed_write_changes_nothing(keys: KeysFile, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full when the new file is brought to it: the old one stays, no half file is left."""
    keys.create("acme")
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        keys.create("another")

    assert before == path.read_bytes()
    assert ["keys.json", "keys.lock"] == sorted(each.name for each in path.parent.iterdir())


def test_changes_at_the_same_time_are_all_kept(path: Path) -> None:
    """Every create reads what the one before has written: 24 of them from 8 threads, each with a lock of its own."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda index: KeysFile(path, SystemClock()).create(f"t{index}").key, range(24)))

    assert {key.id for key in made} == {key.id for key in read_keys(path) or ()}


@pytest.mark.parametrize(
    ("host", "word", "allowed"),
    [("127.0.0.1", False, True), ("::1", False, True), ("0.0.0.0", False, False), ("0.0.0.0", True, True)],
)
def test_where_callers_without_a_key_may_be_served(host: str, word: bool, allowed: bool) -> None:
    assert allowed is anonymous_allowed(host, allow_anonymous=word)
