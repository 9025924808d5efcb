"""Memory sizes as vLLM's command line writes them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kKmMgGtT]?)")
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parsed_bytes(size: int | str) -> int:
    """
    Bytes of `2G`, `512M`, `1.5g` or a plain number.

    Capital letters are binary and take no fraction, small ones are decimal.

    Raises:
        ValueError: vLLM would refuse it.
    """
    if isinstance(size, int):
        return size
    match = _SIZE.fullmatch(size.strip())
    if match is None or ("." in match["number"] and match["unit"] not in tuple("kmgt")):
        raise ValueError(f"expected a size in bytes such as 2G, 512M or 1.5g, found {size!r}")
    unit = match["unit"]
    return int(float(match["number"]) * _BINARY.get(unit, _DECIMAL.get(unit, 1)))
