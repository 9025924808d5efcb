"""
Whatever happens, in whatever order: requests, departures, failures, restarts, reloads, crashes and drains in several
gateway processes. Hypothesis looks for the order that loses a permit, grants one too many or leaves somebody waiting.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.admission import QueueLimits
from gateway.types import FleetSnapshot, ModelView, WorkerAddress, WorkerState, WorkerView
from tests.admission.gateways import MODEL, Gateways, Process, Request, served, waiting

LIMITS = QueueLimits(max_queued=6, timeout_s=30)
ANY = st.integers(min_value=0, max_value=10_000)
STATES = st.sampled_from(
    [WorkerState.READY] * 3
    + [WorkerState.STARTING, WorkerState.UNHEALTHY, WorkerState.BACKOFF, WorkerState.DRAINING, WorkerState.FAILED]
)


class Fates(RuleBasedStateMachine):
    """Up to three processes before up to three workers, and an account of who has what."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Gateways(processes=2, workers=2, limit=2, limits=LIMITS)
        self.clock = self.fleet.clock
        self.states = dict.fromkeys(self.fleet.columns, WorkerState.READY)
        self.launches = dict.fromkeys(self.fleet.columns, 1)
        self.version = 100
        self.limit = 2
        self.requests: list[Request] = []
        self.excluded: dict[Request, frozenset[str]] = {}
        self.before: dict[int, int] = {}

    # --- what may happen ------------------------------------------------------------------------------------------

    @initialize()
    def begins(self) -> None:
        self.publish()

    @rule(which=ANY)
    def arrives(self, which: int) -> None:
        self.requests.append(self.process(which).request())

    @rule(which=ANY)
    @precondition(lambda self: served(self.requests))
    def ends(self, which: int) -> None:
        running = served(self.requests)
        running[which % len(running)].finish()

    @rule(which=ANY)
    @precondition(lambda self: self.requests)
    def leaves(self, which: int) -> None:
        """In line, in the moment between the grant and its use, or while it runs."""
        self.requests.pop(which % len(self.requests)).leave()

    @rule(which=ANY)
    @precondition(lambda self: self.fleet.processes[0].admission.waiting)
    def a_permit_comes_free_for_somebody_who_has_just_left(self, which: int) -> None:
        """The grant and the departure meet: what nobody took goes on to the next in line."""
        process = self.fleet.processes[0]
        process.asleep = True
        mine = [request for request in self.requests if request.process is process]
        if running := served(mine):
            running[which % len(running)].finish()
        for request in waiting(mine):
            if request._turn is not None and request._turn.over():
                request.leave()
        self.awake(process)

    @rule(which=ANY)
    @precondition(lambda self: served(self.requests))
    def fails_and_is_tried_again(self, which: int) -> None:
        running = served(self.requests)
        request = running[which % len(running)]
        self.excluded[request] = self.excluded.get(request, frozenset()) | request.fail()
        request.ask(self.excluded[request], again=True)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.06, 0.2, 1.5, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(which=ANY)
    def exchanges_do_not_get_to_run(self, which: int) -> None:
        """From now on what is granted in a process is not taken at once."""
        self.process(which).asleep = True

    @rule(which=ANY)
    def exchanges_run(self, which: int) -> None:
        self.awake(self.process(which))

    @rule(which=ANY, state=STATES)
    def a_worker_changes(self, which: int, state: WorkerState) -> None:
        names = list(self.states)
        self.states[names[which % len(names)]] = state
        self.publish()

    @rule(which=ANY, behind=st.booleans())
    def a_worker_is_launched_anew(self, which: int, behind: bool) -> None:
        """Perhaps one of the processes does not hear of it before the next news."""
        names = list(self.states)
        name = names[which % len(names)]
        self.fleet.board.close_column(self.fleet.columns[name])
        self.fleet.columns[name] = self.fleet.board.open_column()
        self.launches[name] += 1
        self.publish(skip=which if behind else None)

    @rule()
    @precondition(lambda self: len(self.states) > 1)
    def a_worker_is_removed(self) -> None:
        name, _ = self.states.popitem()
        self.fleet.board.close_column(self.fleet.columns.pop(name))
        self.publish()

    @rule()
    @precondition(lambda self: len(self.states) < 3)
    def a_worker_is_added(self) -> None:
        name = next(name for name in ("llama-0", "llama-1", "llama-2") if name not in self.states)
        self.fleet.columns[name] = self.fleet.board.open_column()
        self.launches[name] = self.launches.get(name, 0) + 1
        self.states[name] = WorkerState.READY
        self.publish()

    @rule(limit=st.sampled_from([1, 2, 4]))
    def a_reload_changes_the_limit(self, limit: int) -> None:
        self.limit = limit
        self.publish()

    @rule()
    @precondition(lambda self: len(self.fleet.processes) < 3)
    def a_process_begins(self) -> None:
        self.fleet.limit = self.limit
        self.fleet.processes.append(Process(self.fleet, LIMITS))
        self.publish()

    @rule(which=ANY)
    @precondition(lambda self: len(self.fleet.processes) > 1)
    def a_process_is_killed(self, which: int) -> None:
        doomed = self.process(which)
        self.requests = [request for request in self.requests if request.process is not doomed]
        rooms = list(doomed.admission._rooms.values())
        for call in self.clock._calls:
            if getattr(call.call, "__self__", None) in rooms:
                call.cancel()
        self.fleet.kill(doomed)

    @rule(which=ANY)
    @precondition(lambda self: len(self.fleet.processes) > 1)
    def a_process_drains_and_ends(self, which: int) -> None:
        """Those in line are sent away, those that run end in peace, and then its row is another's."""
        leaving = self.process(which)
        self.awake(leaving)
        leaving.view.drain()
        self.clock.advance(0.01)
        mine = [request for request in self.requests if request.process is leaving]
        assert [] == waiting(mine)
        for request in mine:
            request.finish()
        assert (0, 0) == (leaving.view.in_flight, self.fleet.board.row_sum(leaving.number))
        self.requests = [request for request in self.requests if request.process is not leaving]
        self.fleet.kill(leaving)

    # --- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def the_board_says_what_is_granted(self) -> None:
        """Every lease counts once, from its grant on, and nothing else does."""
        self.requests = [request for request in self.requests if request.waiting or request.lease is not None]
        for process in self.fleet.processes:
            mine = [request for request in self.requests if request.process is process]
            granted = sum(request._turn is not None and request._turn.over() for request in mine)
            assert process.view.in_flight == len(served(mine)) + granted - self.sent_away(mine)
            assert process.admission.waiting == len(waiting(mine)) - granted

    @invariant()
    def no_worker_gets_more_than_its_limit(self) -> None:
        """What is above it was granted before it was lowered, and only shrinks."""
        sums = {self.fleet.columns[name]: self.fleet.board.column_sum(self.fleet.columns[name]) for name in self.states}
        for column, now in sums.items():
            assert now <= self.limit or now <= self.before.get(column, 0)
        self.before = sums

    @invariant()
    def who_waits_is_looked_after(self) -> None:
        """One timer for each room with somebody in it, none for others."""
        assert sum(process.admission.waiting > 0 for process in self.fleet.processes) == self.clock.pending

    def teardown(self) -> None:
        """Everybody is served in the end where there is a worker, and then everything is zero."""
        for process in list(self.fleet.processes):
            self.awake(process)
        self.states = dict.fromkeys(self.states, WorkerState.READY)
        for name in self.states:
            self.fleet.board.close_column(self.fleet.columns[name])
            self.fleet.columns[name] = self.fleet.board.open_column()
            self.launches[name] += 1
        self.publish()
        self.clock.advance(0.2)
        patient = [request for request in waiting(self.requests) if request not in self.excluded]
        for _ in range(len(self.requests) + 1):
            for request in served(self.requests):
                request.finish()
            self.clock.advance(0.2)
        for request in self.requests:
            request.leave()
        assert [] == [request for request in patient if request.refused is not None or request.no_worker]
        self.fleet.assert_idle()
        self.fleet.close()

    # --- means ----------------------------------------------------------------------------------------------------

    def process(self, which: int) -> Process:
        return self.fleet.processes[which % len(self.fleet.processes)]

    def awake(self, process: Process) -> None:
        process.asleep = False
        for request in self.requests:
            if request.process is process and request._turn is not None and request._turn.over():
                request.go_on()

    @staticmethod
    def sent_away(requests: list[Request]) -> int:
        """Whose wait is over without a lease, which they have not been told yet."""
        turns = [request._turn for request in requests if request._turn is not None]
        return sum(turn.over() and turn._granted is None for turn in turns)

    def publish(self, skip: int | None = None) -> None:
        """All processes hear of the workers and the limit, but for one perhaps."""
        self.version += 1
        views = tuple(
            WorkerView(
                name=name,
                model=MODEL,
                state=state,
                launch_id=str(self.launches[name]),
                address=WorkerAddress("h", 1),
                changed_at_s=0.0,
                was_ready_at_s=self.clock.now_s,
                column=self.fleet.columns[name],
            )
            for name, state in self.states.items()
        )
        snapshot = FleetSnapshot(self.version, (ModelView(MODEL, (), 1, None, self.limit),), views)
        deaf = None if skip is None else self.process(skip)
        for process in self.fleet.processes:
            if process is not deaf:
                process.view.apply(snapshot)


TestFates = Fates.TestCase
TestFates.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
