"""Rewriting a request by splicing bytes: everything that no rewrite names stays byte for byte."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.protocol.request import RequestView


@dataclass(frozen=True, slots=True)
class Rewrites:
    """
    The rewrites of one request; the default changes nothing.

    `model` replaces the model's name; `force_usage` asks for a usage event on chat and completions streams;
    `strip_operator_fields` removes fields that influence other tenants; `default_max_tokens` is written when the
    request sets no limit; `max_tokens_limit` lowers a higher one.
    """

    model: str | None = None
    force_usage: bool = False
    strip_operator_fields: bool = False
    default_max_tokens: int | None = None
    max_tokens_limit: int | None = None


def apply(view: RequestView, rewrites: Rewrites) -> bytes:
    """The body to send; `view.body` itself when nothing changes."""
    raise NotImplementedError
