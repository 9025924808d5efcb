"""Several tenants at once, each with its own key, share and shape of requests."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from loadtest.scenarios.base import Context, Defaults, Session
from loadtest.scenarios.bodies import Ending, chat_request, check_fits, user
from loadtest.scenarios.lengths import Length, fixed
from loadtest.scenarios.options import OUTPUT, about
from loadtest.target import UsageError


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. `share` is its weight among all; without `api_key` it uses the run's own."""

    name: str
    share: float
    prompt_tokens: Length
    output_tokens: Length
    api_key: str | None = field(default=None, repr=False)


USUAL = (
    Tenant("interactive", 6, Length.parse("50-200"), Length.parse("32-64")),
    Tenant("batch", 2, fixed(128), fixed(256)),
    Tenant("documents", 2, fixed(1024), fixed(32)),
)


@dataclass(frozen=True, slots=True)
class Tenants:
    """Each session is one question of one tenant. With keys of their own, quotas and fairness can be seen."""

    name: ClassVar[str] = "tenants"
    description: ClassVar[str] = "several tenants with keys and shapes of their own: fairness and quotas"
    kinds: ClassVar[tuple[str, ...]] = ("chat",)
    defaults: ClassVar[Defaults] = Defaults(users=10)

    context: Context
    file: str = field(
        default="",
        metadata=about(
            "TOML file, a table for each tenant: share, prompt_tokens, output_tokens, key; "
            f"unset: {', '.join(t.name for t in USUAL)} without keys"
        ),
    )
    output: Ending = field(default="fixed", metadata=about(OUTPUT))
    tenants: tuple[Tenant, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tenants = read_tenants(Path(self.file)) if self.file else USUAL
        for tenant in tenants:
            who = f"{self.name}, {tenant.name}"
            check_fits(self.context, who, tenant.prompt_tokens.longest, tenant.output_tokens.longest)
        object.__setattr__(self, "tenants", tenants)

    def session(self, rng: random.Random, number: int) -> Session:
        """One question."""
        scale = self.context.scale
        tenant = rng.choices(self.tenants, [t.share for t in self.tenants])[0]
        tokens = tenant.prompt_tokens.draw(rng) - scale.chat_tokens
        text = scale.text(rng, tokens, before=scale.salt(rng, self.context.salt))
        yield chat_request(
            self.context,
            [user(text)],
            tenant.output_tokens.draw(rng),
            self.output,
            kind="chat",
            tenant=tenant.name,
            api_key=tenant.api_key,
        )


def read_tenants(path: Path) -> tuple[Tenant, ...]:
    """
    The tenants of a file.

    Raises:
        UsageError: it cannot be read, or has something else in it; the message names the tenant and the key.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"tenants: expected a file that can be read, found {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"tenants: expected TOML in UTF-8 in {path}, found {error}") from error
    if not tables:
        raise UsageError(f"tenants: expected a table like [interactive] for each tenant in {path}, found none")
    return tuple(_tenant(path, name, table) for name, table in tables.items())


def _tenant(path: Path, name: str, table: Any) -> Tenant:
    if not isinstance(table, Mapping):
        raise UsageError(f"tenants: expected a table [{name}] in {path}, found {table!r}")
    unknown = set(table) - {"share", "prompt_tokens", "output_tokens", "key"}
    if unknown:
        raise UsageError(
            f"tenants: expected share, prompt_tokens, output_tokens and key in [{name}] of {path}, "
            f"found {', '.join(sorted(unknown))}"
        )
    share, key = table.get("share", 1), table.get("key")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < float("inf"):
        raise UsageError(f"tenants: expected a share above 0 in [{name}] of {path}, found {share!r}")
    if key is not None and not isinstance(key, str):
        raise UsageError(f"tenants: expected a text as key in [{name}] of {path}, found another type")
    lengths = []
    for option in ("prompt_tokens", "output_tokens"):
        try:
            lengths.append(Length.parse(str(table.get(option, "64"))))
        except ValueError as error:
            raise UsageError(f"tenants: {option} in [{name}] of {path}: {error}") from error
    return Tenant(name, float(share), lengths[0], lengths[1], key)
