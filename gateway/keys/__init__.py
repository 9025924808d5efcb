"""
API keys: the file that stores their digests, and what a gateway process needs of it.

The command line writes the file (`KeysFile`), gateway processes follow it (`KeysWatch`); they share nothing else, so a
key works, or stops working, without a restart of anything.
"""

from gateway.keys.exposure import anonymous_allowed, is_loopback
from gateway.keys.file import CreatedKey, KeysFile, KeysUnreadable, NoSuchKey, count_keys, read_keys
from gateway.keys.key import ApiKey, digest_of
from gateway.keys.slots import InFlightSlots, SharedCount
from gateway.keys.watch import KeysWatch

__all__ = [
    "ApiKey",
    "CreatedKey",
    "InFlightSlots",
    "KeysFile",
    "KeysUnreadable",
    "KeysWatch",
    "NoSuchKey",
    "SharedCount",
    "anonymous_allowed",
    "count_keys",
    "digest_of",
    "is_loopback",
    "read_keys",
]
