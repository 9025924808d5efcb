"""
Who holds which GPU: a pure ledger of leases and quarantines.

```
  free ──grant──▶ leased (starting) ──started──▶ leased ──release──▶ free
                                                   │ memory not back
  any  ──Xid, two fast failed starts───────────────┴──────────────▶ quarantined ──forgive──▶ free
```

One worker at a time starts on a GPU, because vLLM measures the free memory while it starts and two would mistake each
other's for their own. What the workers of a GPU reserve together stays under its memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.workers.gpu_sets import Links, best_set
from gateway.workers.placement import Gpu

DEFAULT_SHARE = 0.92
"""What vLLM reserves of a GPU's memory when nothing is configured."""
MOST_RESERVED = 0.95
"""Of a GPU's memory, by several workers together; the rest is for their CUDA contexts. One worker may take all."""
FAST_FAILURES = 2
"""Failed starts in a row on the same GPU after which it is suspected."""
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """
    What one launch asks for.

    `share` is the fraction of each GPU's memory, `bytes_each` an exact size instead of it. `listed`: only these GPUs,
    whoever else uses them. `preferred`: rather these, where nothing speaks against it.
    """

    worker: str
    count: int = 1
    share: float = DEFAULT_SHARE
    bytes_each: int | None = None
    listed: tuple[int, ...] | None = None
    preferred: tuple[int, ...] = ()

    def of(self, gpu: Gpu) -> float:
        """The fraction of this GPU's memory."""
        if self.bytes_each is None or not gpu.total_bytes:
            return self.share
        return min(1.0, self.bytes_each / gpu.total_bytes)


@dataclass(frozen=True, slots=True)
class Granted:
    """The GPUs are the worker's from now on."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """None is free for it now; the sentence says who holds what."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Impossible:
    """This machine can never serve it."""

    sentence: str


Answer = Granted | Waiting | Impossible


@dataclass(frozen=True, slots=True)
class Quarantine:
    """
    Why a GPU is not used. `free_again_below`: bytes in use below which it is free again by itself, for memory that did
    not come back in time. `accuser`: the worker whose failed starts spoke against it.
    """

    reason: str
    free_again_below: int | None = None
    accuser: str = ""


@dataclass(slots=True)
class _Held:
    shares: dict[int, float]
    starting: bool = True


@dataclass(slots=True)
class _Record:
    """Failed starts in a row on one GPU, by worker."""

    failures: dict[str, int] = field(default_factory=dict)


class GpuLedger:
    """
    The state of all GPUs of one supervisor.

    `gpus` are those that may be used at all; `links` between them. `usable_by_list_only`: GPUs that are given only to
    who lists them (others compute there, or they are cut into MIG slices).
    """

    def __init__(self, gpus: Sequence[Gpu], links: Links, *, usable_by_list_only: Mapping[int, str]) -> None:
        self._gpus = {gpu.index: gpu for gpu in gpus}
        self._links = links
        self._list_only = dict(usable_by_list_only)
        self._held: dict[str, _Held] = {}
        self._quarantined: dict[int, Quarantine] = {}
        self._records = {index: _Record() for index in self._gpus}
        self._acquitting: set[str] = set()

    @property
    def gpus(self) -> Mapping[int, Gpu]:
        """All of them, by index."""
        return self._gpus

    @property
    def quarantined(self) -> Mapping[int, Quarantine]:
        """GPUs out of use, with their reasons."""
        return self._quarantined

    def holders(self, index: int) -> tuple[str, ...]:
        """The workers that have a lease on the GPU."""
        return tuple(worker for worker, held in self._held.items() if index in held.shares)

    def request(self, need: GpuNeed, used_bytes: Mapping[int, int]) -> Answer:
        """
        GPUs for one launch.

        Args:
            used_bytes: Memory in use now, by GPU, whoever uses it.
        """
        if need.worker in self._held:
            own = _named(self._gpus_of(need.worker))
            return Waiting(f"Waits until its own earlier launch has given {own} back.")
        allowed = self._allowed(need)
        if isinstance(allowed, Impossible):
            return allowed
        obstacles = {index: self._obstacle(index, need, used_bytes) for index in allowed}
        free = [index for index, obstacle in obstacles.items() if obstacle is None]
        chosen = best_set(free, need.count, self._links, load=self._load, preferred=need.preferred)
        if chosen is None:
            told = "; ".join(f"GPU {index} {obstacle}" for index, obstacle in obstacles.items() if obstacle)
            have = f", {len(free)} free" if free else ""
            return Waiting(f"Waits for {need.count} GPU{'s' if need.count > 1 else ''}{have}: {told}.")
        self._held[need.worker] = _Held({index: need.of(self._gpus[index]) for index in chosen})
        return Granted(chosen)

    def adopt(self, need: GpuNeed, gpus: Sequence[int]) -> None:
        """A worker that runs already holds these."""
        shares = {index: need.of(self._gpus[index]) for index in gpus if index in self._gpus}
        self._held[need.worker] = _Held(shares)

    def started(self, worker: str) -> None:
        """The start is over: the next worker may start there."""
        if worker in self._held:
            self._held[worker].starting = False

    def served(self, worker: str) -> None:
        """It became READY: its GPUs work, and so does it."""
        self.started(worker)
        self._acquitting.discard(worker)
        for index in self._gpus_of(worker):
            self._records[index].failures.clear()

    def start_failed(self, worker: str, gpus: Sequence[int], detail: str) -> tuple[int, ...]:
        """
        A start failed for no reason that lies in the configuration; the GPUs that are quarantined for it.

        The second in a row on the same GPU speaks against the GPU, provided that others could take over; a machine
        without others leaves it to the worker's own restarts to give up. A worker that then fails on other GPUs too is
        itself the cause: what it accused is acquitted, and it accuses no more until it has served once.
        """
        mine = tuple(index for index in gpus if index in self._gpus)
        accused = [index for index, why in self._quarantined.items() if why.accuser == worker and index not in mine]
        for index in mine:
            failures = self._records[index].failures
            failures[worker] = failures.get(worker, 0) + 1
        if accused:
            self._acquitting.add(worker)
            for index in accused:
                del self._quarantined[index]
                self._records[index].failures.clear()
        if worker in self._acquitting or not self._others_suffice(mine):
            return ()
        bad = tuple(index for index in mine if self._records[index].failures[worker] >= FAST_FAILURES)
        for index in bad:
            self._quarantined[index] = Quarantine(
                f"{FAST_FAILURES} starts of {worker} failed there in a row, last: {detail}", accuser=worker
            )
        return bad

    def quarantine(self, index: int, why: Quarantine) -> None:
        """Take a GPU out of use; the worker on it, if any, keeps its lease until it ends."""
        if index in self._gpus:
            self._quarantined.setdefault(index, why)

    def forgive(self, index: int) -> None:
        """Use it again."""
        self._quarantined.pop(index, None)
        if index in self._records:
            self._records[index].failures.clear()

    def settle(self, used_bytes: Mapping[int, int]) -> None:
        """Forgive GPUs whose memory has come back after all."""
        for index, why in list(self._quarantined.items()):
            level = why.free_again_below
            if level is not None and used_bytes.get(index, level) < level:
                self.forgive(index)

    def release(self, worker: str) -> None:
        """The lease ends; the caller has made sure that nothing of the worker is left."""
        self._held.pop(worker, None)

    def reserved_by_others(self, worker: str, index: int) -> int:
        """Bytes that other workers' leases may hold on the GPU."""
        total = self._gpus[index].total_bytes
        return int(sum(held.shares.get(index, 0.0) * total for name, held in self._held.items() if name != worker))

    def _allowed(self, need: GpuNeed) -> tuple[int, ...] | Impossible:
        if need.listed is not None:
            missing = [index for index in need.listed if index not in self._gpus]
            if missing:
                return Impossible(f"GPU {missing[0]} is listed, but this machine has {_named(self._gpus)}")
            allowed = tuple(need.listed)
        else:
            allowed = tuple(index for index in self._gpus if index not in self._list_only)
        if len(set(allowed)) < need.count:
            shut = "".join(f"; GPU {index} {why}" for index, why in self._list_only.items() if index not in allowed)
            return Impossible(f"{need.count} GPU(s) are needed, {len(set(allowed))} may be used{shut}")
        return allowed

    def _obstacle(self, index: int, need: GpuNeed, used_bytes: Mapping[int, int]) -> str | None:
        """Why the GPU cannot be given now, to follow its name; None when it can."""
        gpu = self._gpus[index]
        why = self._quarantined.get(index)
        if why is not None:
            return f"is quarantined ({why.reason})"
        holders = self.holders(index)
        for worker in holders:
            if self._held[worker].starting:
                return f"is held by {worker}, which is starting"
        wanted = need.of(gpu)
        if holders and self._load(index) + wanted > MOST_RESERVED + 1e-9:
            return "is held by " + ", ".join(f"{name} ({self._held[name].shares[index]:.0%})" for name in holders)
        if gpu.total_bytes:
            used = used_bytes.get(index, 0)
            foreign = max(0, used - self.reserved_by_others(need.worker, index)) if holders else used
            if used + wanted * gpu.total_bytes > gpu.total_bytes and foreign > GIB // 4 * 3:
                return f"has {foreign / GIB:.1f} GiB in use by other processes (see nvidia-smi)"
        return None

    def _load(self, index: int) -> float:
        return sum(held.shares.get(index, 0.0) for held in self._held.values())

    def _gpus_of(self, worker: str) -> tuple[int, ...]:
        held = self._held.get(worker)
        return tuple(index for index in held.shares if index in self._gpus) if held else ()

    def _others_suffice(self, mine: Sequence[int]) -> bool:
        others = [
            index
            for index in self._gpus
            if index not in mine and index not in self._quarantined and index not in self._list_only
        ]
        return len(others) >= len(mine) > 0


def _named(gpus: Sequence[int] | Mapping[int, Gpu]) -> str:
    indices = sorted(gpus)
    return f"GPU {', '.join(map(str, indices))}" if indices else "none"
