"""The services of workers on this machine: real processes, real ports, real HTTP."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from gateway.clock import Clock, SystemClock
from gateway.config.settings import Watch
from gateway.types import WorkerAddress
from gateway.workers.ports import LoopbackPorts
from gateway.workers.probe import HttpProber
from gateway.workers.process import SessionLauncher
from gateway.workers.services import Prober, WorkerServices

_LAUNCH_ID_BYTES = 8


def local_services(environ: Mapping[str, str], watch: Watch, clock: Clock | None = None) -> WorkerServices:
    """
    What every worker's task shares.

    Args:
        environ: The supervisor's own environment.
        watch: For the probes' time limit.
    """
    clock = clock or SystemClock()

    def prober(address: WorkerAddress, api_key: str | None, model: str) -> Prober:
        return HttpProber(address, api_key, model, timeout_s=watch.probe_timeout_s)

    return WorkerServices(
        launcher=SessionLauncher(clock),
        prober=prober,
        ports=LoopbackPorts(),
        environ=environ,
        new_launch_id=lambda: secrets.token_hex(_LAUNCH_ID_BYTES),
        clock=clock,
    )
