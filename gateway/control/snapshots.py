"""From the workers' states to the snapshot that gateway processes route by: a pure function."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config.settings import Settings
from gateway.types import FleetSnapshot, ModelView, WorkerView


def build_snapshot(
    version: int, settings: Settings, views: Sequence[WorkerView], *, created: int, draining: bool
) -> FleetSnapshot:
    """
    The fleet as of now.

    A model's context length is the smallest that one of its workers reports, so that what `/v1/models` promises holds
    on whichever worker a request lands.

    The limits in it make one truth of them: a process that a reload has replaced has older settings and requests that
    wait, and would go on claiming permits that by its own limit there are none of.

    Args:
        created: Unix seconds given for every model in `/v1/models`: when this supervisor started.
    """
    models = []
    for name, model in settings.models.items():
        lengths = [view.max_model_len for view in views if view.model == name and view.max_model_len is not None]
        models.append(
            ModelView(
                name=name,
                aliases=tuple(model.aliases),
                created=created,
                max_model_len=min(lengths) if lengths else None,
                max_in_flight=model.max_in_flight or 0,
            )
        )
    return FleetSnapshot(version=version, models=tuple(models), workers=tuple(views), draining=draining)
