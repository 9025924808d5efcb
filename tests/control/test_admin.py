"""The admin API as served: both doors, who may do what, and what the answers are."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from typer.testing import CliRunner

from gateway import cli
from gateway.clock import SystemClock
from gateway.control.admin import TcpGuard, admin_app
from gateway.control.admin_server import UvicornAdminServer
from gateway.control.changes import Change, Effect
from gateway.control.instruments import Instruments
from gateway.control.load_book import Load
from gateway.control.operations import Busy, OperationReport
from gateway.control.quarantine import QuarantinedGpu
from gateway.control.reload import ReloadAnswer
from gateway.control.scrape import Scraper
from gateway.control.sockets import listen, listen_unix
from gateway.control.state_dir import Endpoint, held
from gateway.control.status_report import StatusReport, model_lines, worker_lines
from gateway.control.web import History
from gateway.errors import ConfigurationError
from gateway.log import EventLog
from gateway.metrics import Layout, StartDurations, Totals, Values
from gateway.metrics.catalogue import OUTPUT_TOKENS
from gateway.metrics.totals import Reading
from gateway.types import WorkerAddress, WorkerState
from gateway.workers.actor import WorkerCommand
from gateway.workers.status import WorkerStatus
from tests.control.fakes import NO_PROCESSES, FakeWorker, settings, spec

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

TOKEN = "the-token"


class FakeFleet:
    """What the admin API asks of a supervisor, with two workers that the test moves."""

    def __init__(self) -> None:
        self.actors = {name: FakeWorker(spec(name), lambda status: None) for name in ("m-0", "m-1")}
        self.totals = Totals()
        self.start_durations = StartDurations()
        log = EventLog(lambda line: None, SystemClock())
        self.instruments = Instruments(SystemClock(), dict, None, log, NO_PROCESSES)
        self.draining = False
        self.settings = settings()
        self.asked: list[object] = []
        self.answer: ReloadAnswer | Exception = ReloadAnswer(changes=())
        self.quarantined: dict[int, str] = {}

    def command(self, name: str, command: WorkerCommand) -> None:
        self.actors[name].command(command)

    async def reload(self, *, dry_run: bool) -> ReloadAnswer:
        self.asked.append(dry_run)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def replace_processes(self) -> OperationReport:
        if self.asked:
            raise Busy("a reload is under way")
        return OperationReport(number=1, name="replacement of the gateway processes", running=True)

    def restart(self, models: Collection[str], minimum: int | None) -> OperationReport:
        if self.asked:
            raise Busy("a reload is under way")
        self.asked.append((list(models), minimum))
        return OperationReport(number=1, name="rolling restart", running=True)

    @property
    def statuses(self) -> list[WorkerStatus]:
        return [actor.status for actor in self.actors.values()]

    def report(self) -> StatusReport:
        load = Load(in_flight=0, silent_s=None)
        return StatusReport(
            pid=1,
            version="0",
            uptime_s=1.0,
            draining=self.draining,
            public_url="http://127.0.0.1:1",
            admin_url="http://127.0.0.1:2",
            models=model_lines(settings(), self.statuses),
            workers=worker_lines(self.statuses, 10.0, lambda name: load.in_flight),
            gateway_processes=(),
            quarantined_gpus=tuple(QuarantinedGpu(gpu, why, "") for gpu, why in self.quarantined.items()),
        )

    def return_gpu(self, index: int) -> str | None:
        return self.quarantined.pop(index, None)

    def progress_ages(self) -> dict[str, float]:
        return {"m-0": 2.5}


class Doors:
    """Clients of both doors of one running admin server."""

    def __init__(self, fleet: FakeFleet, tcp: httpx.AsyncClient, unix: httpx.AsyncClient, port: int) -> None:
        self.fleet = fleet
        self.tcp = tcp
        self.unix = unix
        self.port = port


@asynccontextmanager
async def served(tmp_path: Path, *, bound_host: str = "127.0.0.1") -> AsyncIterator[Doors]:
    """The admin API on a free port and on a Unix socket. (As a context of the test itself: cancel scopes do not span
    fixtures.)"""
    fleet = FakeFleet()
    history = History(fleet.totals.of, lambda: ["m"], SystemClock(), EventLog(list[bytes]().append, SystemClock()))
    app = admin_app(fleet, Scraper(SystemClock()), history, lambda: False)
    server = UvicornAdminServer(TcpGuard(app, bound_host=bound_host, token=TOKEN), app)
    (tcp,) = listen("127.0.0.1", 0, key="admin")
    path = str(tmp_path / "a.sock")
    with tcp, listen_unix(path) as unix, anyio.fail_after(30):
        port = tcp.getsockname()[1]
        async with (
            anyio.create_task_group() as group,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as by_tcp,
            httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path), base_url="http://localhost") as by_unix,
        ):
            group.start_soon(server.serve, tcp, unix)
            yield Doors(fleet, by_tcp, by_unix, port)
            group.cancel_scope.cancel()


async def test_both_doors_tell_the_same(tmp_path: Path) -> None:
    """Reading needs no token on either."""
    async with served(tmp_path) as doors:
        for path in ("/status", "/health", "/discovery"):
            by_tcp, by_unix = await doors.tcp.get(path), await doors.unix.get(path)
            assert 200 == by_tcp.status_code == by_unix.status_code
        report = StatusReport.from_json((await doors.unix.get("/status")).content)

    assert ["m-0", "m-1"] == [worker.name for worker in report.workers]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9", "localhost", "LOCALHOST:80", "[::1]:8001"])
async def test_loopback_names_are_answered(tmp_path: Path, host: str) -> None:
    async with served(tmp_path) as doors:
        assert 200 == (await doors.tcp.get("/health", headers={"host": host})).status_code


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8001", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0", ""]
)
async def test_a_page_that_rebinds_its_name_to_us_is_refused(tmp_path: Path, host: str) -> None:
    """Reading and commanding alike, with the right token too."""
    async with served(tmp_path) as doors:
        read = await doors.tcp.get("/status", headers={"host": host})
        command = await doors.tcp.post("/workers/m-0/stop", headers={"host": host, "authorization": f"Bearer {TOKEN}"})

    assert 421 == read.status_code == command.status_code
    assert "wrong_host" == read.json()["error"]["code"]
    assert [] == doors.fleet.actors["m-0"].commands


async def test_bound_elsewhere_any_name_may_read_and_the_token_still_guards(tmp_path: Path) -> None:
    """Prometheus in another container uses the service's name."""
    async with served(tmp_path, bound_host="0.0.0.0") as doors:
        read = await doors.tcp.get("/metrics", headers={"host": "gateway:8001"})
        command = await doors.tcp.post("/workers/m-0/stop", headers={"host": "gateway:8001"})

    assert 200 == read.status_code
    assert 401 == command.status_code


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"]
)
async def test_over_tcp_nothing_changes_without_the_token(tmp_path: Path, authorization: str | None) -> None:
    """Also not through methods that no route has."""
    headers = {} if authorization is None else {"authorization": authorization}
    async with served(tmp_path) as doors:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            answer = await doors.tcp.request(method, "/workers/m-0/restart", headers=headers)
            assert 401 == answer.status_code
        assert "admin.token" in answer.json()["error"]["message"]

    assert [] == doors.fleet.actors["m-0"].commands


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("restart", WorkerCommand.RESTART),
        ("drain", WorkerCommand.DRAIN),
        ("stop", WorkerCommand.STOP),
        ("start", WorkerCommand.START),
    ],
)
async def test_commands_reach_their_worker_and_no_other(tmp_path: Path, word: str, command: WorkerCommand) -> None:
    """Over TCP with the token, over the Unix socket without."""
    async with served(tmp_path) as doors:
        by_tcp = await doors.tcp.post(f"/workers/m-1/{word}", headers={"authorization": f"bearer {TOKEN}"})
        by_unix = await doors.unix.post(f"/workers/m-1/{word}")

    assert 202 == by_tcp.status_code == by_unix.status_code
    assert {"worker": "m-1", "command": word, "state": "stopped"} == by_unix.json()
    assert [command, command] == doors.fleet.actors["m-1"].commands
    assert [] == doors.fleet.actors["m-0"].commands


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("POST", "/workers/nobody/stop", 404, "m-0, m-1"),
        ("POST", "/workers/m-0/shutdown", 404, "restart, drain, stop, start"),
        ("GET", "/workers/nobody/metrics", 404, "nobody"),
        ("GET", "/workers/m-0/metrics", 503, "no process"),
        ("GET", "/nothing", 404, "Not Found"),
        ("POST", "/status", 405, "Method Not Allowed"),
    ],
)
async def test_errors_are_json_with_a_message(tmp_path: Path, method: str, path: str, status: int, words: str) -> None:
    async with served(tmp_path) as doors:
        answer = await doors.unix.request(method, path)

    assert status == answer.status_code
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"]


async def test_a_stopping_gateway_takes_no_commands(tmp_path: Path) -> None:
    """A worker that is started during the stop would be left behind."""
    async with served(tmp_path) as doors:
        doors.fleet.draining = True
        answer = await doors.unix.post("/workers/m-0/start")
        health = await doors.unix.get("/health")

    assert 409 == answer.status_code
    assert {"status": "draining"} == health.json()
    assert [] == doors.fleet.actors["m-0"].commands


async def test_metrics_join_gateway_processes_and_workers(tmp_path: Path) -> None:
    """Totals of living and dead processes, and the states of the workers."""
    async with served(tmp_path) as doors:
        layout = Layout(["m"], [("m", "m-0"), ("m", "m-1")])
        living, dead = doors.fleet.totals.create(layout), doors.fleet.totals.create(layout)
        for board, count in ((living, 2.0), (dead, 3.0)):
            series = next(each for each in layout.series if each.metric.name == "gateway_output_tokens_total")
            board.cells[series.offset] = count
        doors.fleet.totals.retire(dead)
        doors.fleet.actors["m-0"].become(WorkerState.READY)
        answer = await doors.tcp.get("/metrics")
        doors.fleet.totals.retire(living)

    assert answer.headers["content-type"].startswith("text/plain")
    assert 'gateway_output_tokens_total{model="m"} 5.0' in answer.text
    assert 'gateway_worker_state{model="m",state="ready",worker="m-0"} 1.0' in answer.text
    assert 'gateway_worker_state{model="m",state="ready",worker="m-1"} 0.0' in answer.text
    assert 'gateway_worker_progress_age_seconds{model="m",worker="m-0"} 2.5' in answer.text


async def test_adding_up_does_not_hold_the_supervisor_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another thread, on the boards of one moment; a process that dies meanwhile is counted once."""
    async with served(tmp_path) as doors:
        totals, layout = doors.fleet.totals, Layout(["m"])
        board = totals.create(layout)
        board.cells[layout.offset(OUTPUT_TOKENS, "m")] = 2.0
        threads: list[int] = []
        add_up = totals.whole

        def whole(reading: Reading) -> Values:
            threads.append(threading.get_ident())
            anyio.from_thread.run_sync(totals.retire, board)
            return add_up(reading)

        monkeypatch.setattr(totals, "whole", whole)
        during = await doors.unix.get("/metrics")
        after = await doors.unix.get("/metrics")

    assert threading.get_ident() not in threads
    for answer in (during, after):
        assert 'gateway_output_tokens_total{model="m"} 2.0' in answer.text
    assert board.fd < 0


async def test_a_worker_is_scraped_once_a_second_however_many_ask(tmp_path: Path) -> None:
    """Twenty scrapers at once cost the worker one request; the text and its type are the worker's own."""
    asked: list[bytes] = []

    async def worker(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            asked.append(await stream.receive())
            await stream.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=1.0.0; charset=utf-8\r\n"
                b"Content-Length: 5\r\nConnection: close\r\n\r\nx 1.0"
            )

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with served(tmp_path) as doors, anyio.create_task_group() as group:
        group.start_soon(listener.serve, worker)
        doors.fleet.actors["m-0"].become(
            WorkerState.READY, address=WorkerAddress(host="127.0.0.1", port=port), launch_id="l1"
        )
        answers: list[httpx.Response] = []

        async def scrape() -> None:
            answers.append(await doors.tcp.get("/workers/m-0/metrics"))

        async with anyio.create_task_group() as scrapers:
            for _ in range(20):
                scrapers.start_soon(scrape)
        # Another launch is another process: its page is not the old one's.
        doors.fleet.actors["m-0"].become(WorkerState.READY, launch_id="l2")
        await scrape()
        group.cancel_scope.cancel()
    await listener.aclose()

    assert {"x 1.0"} == {answer.text for answer in answers}
    assert {"text/plain; version=1.0.0; charset=utf-8"} == {answer.headers["content-type"] for answer in answers}
    assert 2 == len(asked)


async def test_discovery_points_prometheus_at_this_server(tmp_path: Path) -> None:
    """One target for each worker, under the name by which the scraper reached us."""
    async with served(tmp_path) as doors:
        targets = (await doors.tcp.get("/discovery")).json()

    assert [[f"127.0.0.1:{doors.port}"]] * 2 == [target["targets"] for target in targets]
    assert {"__metrics_path__": "/workers/m-0/metrics", "instance": "m-0", "worker": "m-0", "model": "m"} == targets[0][
        "labels"
    ]


async def test_a_reload_answers_the_difference_and_whether_it_is_applied(tmp_path: Path) -> None:
    """200 with nothing begun, 202 with an operation, 409 with the sentence of a refusal, 400 for a wrong file."""
    change = Change("models.m.retries", "2", "3", Effect.GATEWAY)
    async with served(tmp_path) as doors:
        doors.fleet.answer = ReloadAnswer(changes=(change,))
        dry = await doors.unix.post("/reload?dry_run=true")
        doors.fleet.answer = ReloadAnswer(changes=(change,), operation=OperationReport(1, "reload", running=True))
        begun = await doors.unix.post("/reload")
        doors.fleet.answer = ReloadAnswer(changes=(change,), refused="listen.port cannot change")
        refused = await doors.unix.post("/reload")
        doors.fleet.answer = ConfigurationError("expected a number", key="listen.port")
        wrong = await doors.unix.post("/reload")

    assert [200, 202, 409, 400] == [each.status_code for each in (dry, begun, refused, wrong)]
    assert [True, False, False, False] == doors.fleet.asked
    assert "models.m.retries" == dry.json()["changes"][0]["key"]
    assert begun.json()["operation"]["running"]
    assert "listen.port cannot change" == refused.json()["refused"]
    assert "listen.port: expected a number" == wrong.json()["error"]["message"]


async def test_gateway_processes_are_replaced_by_the_owner_one_operation_at_a_time(tmp_path: Path) -> None:
    """Over TCP it takes the token; while something else is under way it is refused, and when the gateway stops."""
    async with served(tmp_path) as doors:
        stranger = await doors.tcp.post("/processes/replace")
        begun = await doors.unix.post("/processes/replace")
        doors.fleet.asked.append("a reload")
        busy = await doors.unix.post("/processes/replace")
        doors.fleet.draining = True
        draining = await doors.unix.post("/processes/replace")

    assert [401, 202, 409, 409] == [answer.status_code for answer in (stranger, begun, busy, draining)]
    assert "replacement of the gateway processes" == begun.json()["name"]
    assert ["busy", "draining"] == [answer.json()["error"]["code"] for answer in (busy, draining)]


async def test_a_gpu_out_of_use_comes_back_by_its_owners_word(tmp_path: Path) -> None:
    """Over TCP it takes the token; one that is in use is refused, and the refusal names those that are not."""
    async with served(tmp_path) as doors:
        doors.fleet.quarantined = {3: "the driver reported Xid 79"}
        stranger = await doors.tcp.post("/gpus/3/return")
        wrong = await doors.unix.post("/gpus/2/return")
        done = await doors.unix.post("/gpus/3/return")
        again = await doors.unix.post("/gpus/3/return")

    assert [401, 404, 200, 404] == [each.status_code for each in (stranger, wrong, done, again)]
    assert {"gpu": 3, "reason": "the driver reported Xid 79"} == done.json()
    assert "GPU 2 is not out of use; those that are: 3" == wrong.json()["error"]["message"]
    assert "those that are: none" in again.json()["error"]["message"]


async def test_the_command_returns_a_gpu_and_says_why_it_was_out_of_use(tmp_path: Path) -> None:
    """Through the socket in the state directory, as every command."""
    with held(tmp_path / "state") as state:
        state.write_endpoint(Endpoint(pid=1, socket=str(tmp_path / "a.sock"), public_url="", admin_url=""))
        async with served(tmp_path) as doors:
            doors.fleet.quarantined = {3: "the driver reported Xid 79"}
            environ = {"GATEWAY_STATE_DIR": str(state.root)}
            done = await anyio.to_thread.run_sync(
                lambda: CliRunner().invoke(cli.app, ["gpus", "return", "3"], env=environ)
            )

    assert (0, "GPU 3 is used again; it was out of use because: the driver reported Xid 79\n") == (
        done.exit_code,
        done.output,
    )
    assert {} == doors.fleet.quarantined


async def test_a_rolling_restart_is_for_known_models_and_one_at_a_time(tmp_path: Path) -> None:
    async with served(tmp_path) as doors:
        unknown = await doors.unix.post("/restart?model=x")
        begun = await doors.unix.post("/restart?model=m&min_available=1")
        busy = await doors.unix.post("/restart")

    assert [404, 202, 409] == [each.status_code for each in (unknown, begun, busy)]
    assert [(["m"], 1)] == doors.fleet.asked
