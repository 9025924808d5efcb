"""What a load process tells about itself, about once a second; as bytes between processes."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import msgspec

from loadtest.ledger import RequestRecord


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Counts are cumulative; lists hold what is new since the report before, so no report may be lost."""

    process: int
    scheduled: int
    sent: int
    token_events: int
    output_tokens: int
    users: int
    ttfts_s: list[float]
    send_lag_max_s: float
    loop_lags_s: list[float]
    cpu_s: float
    cpu_share: float
    """Of one core, since the report before."""
    events_per_s: float
    """Token events since the report before, per second."""
    records: list[RequestRecord]
    final: bool = False
    locust_requests: int = 0
    """Locust's own count in this process, told with the final report."""
    locust_failures: int = 0

    def to_bytes(self) -> bytes:
        """MessagePack: exact floats, and small."""
        return msgspec.msgpack.encode(self, enc_hook=_as_list)

    @classmethod
    def from_bytes(cls, data: bytes) -> ProcessReport:
        """The inverse of `to_bytes`."""
        return msgspec.msgpack.decode(data, type=cls)


def _as_list(value: Any) -> list[float]:
    if isinstance(value, array):
        return value.tolist()
    raise NotImplementedError(f"expected nothing else than arrays beside plain values, found {type(value)}")
