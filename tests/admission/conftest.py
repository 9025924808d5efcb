"""Gateway processes that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.admission.gateways import Gateways


@pytest.fixture
def gateways() -> Iterator[Callable[..., Gateways]]:
    made: list[Gateways] = []

    def make(*arguments: object, **more: object) -> Gateways:
        made.append(Gateways(*arguments, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()
