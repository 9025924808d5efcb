"""
What set-up costs, as announced before it starts and as the doctor asks for, for x86_64 and rounded up.

Downloads are the sums of the locked files; the room on disk is measured for the CPU engine and estimated for CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes to download, and bytes on disk once built (pip's own cache of the downloads not counted)."""

    download: int
    disk: int


LIGHT = Size(110 * MB, 370 * MB)
TOOLS = Size(140 * MB, 500 * MB)
ENGINE_CPU = Size(610 * MB, 2_600 * MB)
ENGINE_CUDA_13 = Size(4_300 * MB, 10_000 * MB)
ENGINE_CUDA_12 = Size(5_200 * MB, 12_000 * MB)
MODEL = Size(93 * MB, 275 * MB)


def megabytes(size: int) -> str:
    """`300 MB`, `2.6 GB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1000 * MB else f"{size // MB} MB"
