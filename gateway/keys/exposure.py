"""Where callers without an API key may be served (decision 15)."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """True when only this machine can connect to `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def anonymous_allowed(host: str, *, allow_anonymous: bool) -> bool:
    """
    Whether a listener on `host` may serve callers without a key, as long as no keys file exists.

    Everybody who can reach loopback already runs programs on this machine; any other address needs the operator's word.
    """
    return allow_anonymous or is_loopback(host)
