"""Ending what a gateway that was killed has left running."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console

from gateway.control.records import sweep
from gateway.control.state_dir import StateDir
from gateway.errors import EnvironmentProblem


def sweep_leftovers(state: StateDir, console: Console, *, spare: Collection[str] = ()) -> bool:
    """
    Kill what a killed supervisor left running, before anybody looks which GPUs are free; True when there was any.

    Launches in `spare` are left for now. Raises EnvironmentProblem when something cannot be killed: it may hold a GPU.
    """
    swept = sweep(state.records, spare=spare)
    if swept.workers:
        names = ", ".join(swept.workers)
        console.print(
            f"ended {len(swept.killed)} process(es) of {names}, left by a gateway that was killed", markup=False
        )
    if swept.survivors:
        pids = " ".join(map(str, swept.survivors))
        raise EnvironmentProblem(
            f"processes {pids} of an earlier gateway cannot be killed and may hold a GPU",
            fix=f"ps -o pid,stat,wchan,args -p '{pids}' (in state D a driver hangs: restart the machine)",
        )
    return bool(swept.workers)
