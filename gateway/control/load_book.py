"""What all gateway processes together have in flight on each worker: a plain book, one page per slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.messages import WorkerLoad


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in flight on one launch of one worker; `silent_s`: seconds since the last byte on any of its streams."""

    in_flight: int
    silent_s: float | None


class LoadBook:
    """The last report of every slot. A slot whose process died has nothing in flight any more."""

    def __init__(self) -> None:
        self._pages: dict[int, tuple[WorkerLoad, ...]] = {}

    def replace(self, slot: int, loads: Sequence[WorkerLoad]) -> None:
        """The slot's process reports this now."""
        self._pages[slot] = tuple(loads)

    def drop(self, slot: int) -> None:
        """The slot's process is gone."""
        self._pages.pop(slot, None)

    def of(self, worker: str, launch_id: str) -> Load:
        """The sum over all slots; the silence is that of the stream heard from last."""
        entries = [
            entry
            for page in self._pages.values()
            for entry in page
            if entry.worker == worker and entry.launch_id == launch_id
        ]
        heard = [entry.silent_s for entry in entries if entry.silent_s is not None]
        return Load(in_flight=sum(entry.in_flight for entry in entries), silent_s=min(heard) if heard else None)
