"""What set-up costs, as announced before it starts and as the doctor asks for. Measured on x86_64, rounded up."""

from __future__ import annotations

from dataclasses import dataclass

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes to download, and bytes on disk once built (pip's own cache of the downloads not counted)."""

    download: int
    disk: int


LIGHT = Size(90 * MB, 300 * MB)
ENGINE_CPU = Size(750 * MB, 2_600 * MB)
ENGINE_CUDA = Size(4_500 * MB, 10_500 * MB)
MODEL = Size(93 * MB, 275 * MB)


def megabytes(size: int) -> str:
    """`300 MB`, `2.6 GB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1000 * MB else f"{size // MB} MB"
