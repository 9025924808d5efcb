"""Rewriting a request by splicing bytes: everything that no rewrite names stays byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.protocol.members import Member, decode_members, scan_members
from gateway.protocol.multipart import read_fields
from gateway.protocol.request import TOKEN_LIMITS, RequestView
from gateway.types import Family

OPERATOR_FIELDS: Final = frozenset({"priority", "request_id", "kv_transfer_params", "ec_transfer_params", "cache_salt"})
"""Fields of a worker's API with which one tenant influences another's requests."""


class Rewrites:
    """
    The rewrites of one request; the default changes nothing.

    Attributes:
        model: Replaces the model's name, when the request gives one.
        force_usage: Ask for the usage event on a chat or completions stream that did not.
        strip_operator_fields: Remove `OPERATOR_FIELDS`.
        default_max_tokens: Written when the request sets no limit of its own.
        max_tokens_limit: A request that asks for more tokens gets this many; so does a chat or responses request that
            sets no limit, which the worker would otherwise let run to the end of the context.
    """

    __slots__ = ("default_max_tokens", "force_usage", "max_tokens_limit", "model", "strip_operator_fields")

    def __init__(  # spelt out, as is that of `ExchangeRecord`
        self,
        model: str | None = None,
        force_usage: bool = False,
        strip_operator_fields: bool = False,
        default_max_tokens: int | None = None,
        max_tokens_limit: int | None = None,
    ) -> None:
        self.model = model
        self.force_usage = force_usage
        self.strip_operator_fields = strip_operator_fields
        self.default_max_tokens = default_max_tokens
        self.max_tokens_limit = max_tokens_limit


_Edit = bytes | None  # the new value of a member; None removes it
_WITH_USAGE: Final = (Family.CHAT, Family.COMPLETIONS)
_USAGE_ONLY: Final = b'{"include_usage":true}'
# Without include_usage the worker ignores continuous_usage_stats; with it, every chunk would carry usage.
_USAGE_OPTIONS: Final = frozenset({"include_usage", "continuous_usage_stats"})


def forces_usage(view: RequestView) -> bool:
    """Whether `force_usage` would change this request; the usage event must then be dropped from the answer."""
    return view.stream and view.include_usage is not True and view.family in _WITH_USAGE


def apply(view: RequestView, rewrites: Rewrites) -> bytes:
    """The body to send; `view.body` itself when nothing changes."""
    if view.members is None:
        return _apply_to_form(view, rewrites)
    body, members = view.body, view.members
    edits: dict[str, _Edit] = {}
    additions: list[bytes] = []
    found: list[Member] | None = None
    if rewrites.model is not None and view.model is not None and rewrites.model != view.model:
        edits["model"] = msgspec.json.encode(rewrites.model)
    if rewrites.strip_operator_fields and not OPERATOR_FIELDS.isdisjoint(members):
        edits.update((name, None) for name in OPERATOR_FIELDS if name in members)
    if rewrites.force_usage and forces_usage(view):
        if "stream_options" in members:
            found = scan_members(body, members)
            options = [body[member.value : member.end] for member in found if member.key == "stream_options"]
            edits["stream_options"] = _with_usage(options[-1])
        else:
            additions.append(b'"stream_options":' + _USAGE_ONLY)
    if rewrites.default_max_tokens is not None or rewrites.max_tokens_limit is not None:
        _limit_tokens(view.family, members, rewrites, edits, additions)
    if not edits and not additions:
        return body
    if edits and found is None:
        found = scan_members(body, members)
    return _splice(body, found, edits, additions, empty=not members)


def _apply_to_form(view: RequestView, rewrites: Rewrites) -> bytes:
    if rewrites.model is None or view.model is None or rewrites.model == view.model:
        return view.body
    named = read_fields(view.body, view.content_type, frozenset({"model"}))["model"]
    return b"".join((view.body[: named.start], rewrites.model.encode(), view.body[named.end :]))


def _with_usage(options: bytes) -> bytes:
    """`stream_options` with usage asked for and everything else as it was."""
    if options == b"null":
        return _USAGE_ONLY
    inner = decode_members(options)
    drop: dict[str, _Edit] = dict.fromkeys(name for name in inner if name in _USAGE_OPTIONS)
    return _splice(options, scan_members(options, inner), drop, [b'"include_usage":true'], empty=not inner)


def _limit_tokens(
    family: Family,
    members: Mapping[str, msgspec.Raw],
    rewrites: Rewrites,
    edits: dict[str, _Edit],
    additions: list[bytes],
) -> None:
    names = TOKEN_LIMITS[family]
    limit = rewrites.max_tokens_limit
    present = [name for name in names if name in members and bytes(members[name]) != b"null"]
    for name in present:
        if limit is not None and _exceeds(members[name], limit):
            edits[name] = b"%d" % limit
    # Messages requires the field: what is missing there is the worker's to refuse.
    if present or not names or family is Family.MESSAGES:
        return
    wanted = rewrites.default_max_tokens
    if wanted is None and family is not Family.COMPLETIONS:
        wanted = limit
    if wanted is None:
        return
    value = b"%d" % (wanted if limit is None else min(wanted, limit))
    # The last name is the one every version of the worker knows.
    name = names[-1]
    if name in members:
        edits[name] = value
    else:
        additions.append(b'"%s":%s' % (name.encode(), value))


def _exceeds(raw: msgspec.Raw, limit: int) -> bool:
    """Also for the spellings of a number that the worker would accept: 1e6, 4096.0, "4096"."""
    text: str | bytes = bytes(raw)
    try:
        if text[:1] == b'"':
            text = msgspec.json.decode(raw, type=str)
        return float(text) > limit
    except ValueError:
        return False


def _splice(
    body: bytes, members: list[Member] | None, edits: Mapping[str, _Edit], additions: list[bytes], *, empty: bool
) -> bytes:
    """
    Replace, remove and add members. Additions go in front, where nothing depends on what follows.

    `members` are those of `body`, None when there are only additions, as for most streams.
    """
    opened = body.index(b"{") + 1
    if members is None:
        return b"".join((body[:opened], b",".join(additions), b"" if empty else b",", body[opened:]))
    cuts: list[tuple[int, int, bytes]] = []
    last_kept = max((at for at, member in enumerate(members) if edits.get(member.key, b"") is not None), default=-1)
    if additions:
        cuts.append((opened, opened, b",".join(additions) + (b"," if last_kept >= 0 else b"")))
    for at, member in enumerate(members):
        value = edits.get(member.key, member)
        if isinstance(value, bytes):
            cuts.append((member.value, member.end, value))
        elif value is None and at < last_kept:
            cuts.append((member.start, members[at + 1].start, b""))
    if last_kept < len(members) - 1:
        # The comma before the removed tail goes with it.
        cuts.append((members[last_kept].end if last_kept >= 0 else members[0].start, members[-1].end, b""))
    pieces: list[bytes] = []
    position = 0
    for start, end, replacement in cuts:
        pieces += (body[position:start], replacement)
        position = end
    pieces.append(body[position:])
    return b"".join(pieces)
