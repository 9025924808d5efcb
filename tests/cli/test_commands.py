"""The `gateway` command as a process: exit codes, messages and help are a public interface."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.control.state_dir import held

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

DEMO = Path(__file__).parents[2] / "deploy/examples/demo.yaml"
COMMANDS = [
    [],
    ["up"],
    ["check"],
    ["doctor"],
    ["status"],
    ["cache"],
    ["logs"],
    ["reload"],
    ["sweep"],
    ["workers"],
    ["workers", "restart"],
    ["workers", "drain"],
    ["workers", "stop"],
    ["workers", "start"],
    ["gpus"],
    ["gpus", "return"],
    ["keys"],
    ["keys", "create"],
    ["keys", "list"],
    ["keys", "revoke"],
]


class Home:
    """An empty home directory and the command run in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"

    def gateway(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run to the end, with nothing of this machine's own configuration."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
        return subprocess.run(
            [sys.executable, "-m", "gateway", *arguments],
            cwd=self.root,
            env={
                **kept,
                "HOME": str(self.root),
                "GATEWAY_STATE_DIR": str(self.state),
                "GATEWAY_CACHE_DIR": str(self.root / "cache"),
                "COLUMNS": "120",
                **environ,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    def write(self, text: str) -> str:
        """A configuration file."""
        path = self.root / "fleet.yaml"
        path.write_text(text)
        return str(path)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The only line on standard error of a command that ended with `code`."""
    assert code == done.returncode, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("gateway: ")
    assert "Traceback" not in done.stdout
    return line


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "gateway")
def test_every_command_has_help(home: Home, command: list[str]) -> None:
    """Ends with 0, says what it does, and touches nothing."""
    done = home.gateway(*command, "--help")

    assert 0 == done.returncode
    assert "Usage: gateway" in done.stdout
    assert [] == list(home.root.iterdir())


def test_help_documents_every_exit_code(home: Home) -> None:
    text = " ".join(home.gateway("--help").stdout.split())

    for code in ("0 done", "1 unexpected", "2 wrong", "3 this machine", "4 port", "5 another", "6 no worker", "7 no "):
        assert code in text
    assert "130 interrupted" in text


def test_the_version_is_the_packages(home: Home) -> None:
    done = home.gateway("--version")

    assert (0, "vllm-gateway ") == (done.returncode, done.stdout[:13])


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["up", "--port", "0"], ["up", "--port", "x"], ["up", "a", "b"], ["logs"], ["doctor", "--for", "x"]],
    ids=" ".join,
)
def test_a_wrong_command_line_ends_with_2(home: Home, arguments: list[str]) -> None:
    done = home.gateway(*arguments)

    assert 2 == done.returncode
    assert "Traceback" not in done.stderr


def test_model_and_file_exclude_each_other(home: Home) -> None:
    """Also when the file comes from the environment, which the message says."""
    assert "GATEWAY_CONFIG" in one_line(home.gateway("up", "org/model", GATEWAY_CONFIG=str(DEMO)), 2)


def test_a_wrong_file_is_explained_with_line_and_key(home: Home) -> None:
    """Every problem at once, for `check` and `up` alike."""
    file = home.write("listen:\n  prot: 8000\nmodels:\n  m:\n    model: org/model\n    replicas: -1\n")
    for command in (["check", file], ["up", "-c", file]):
        done = home.gateway(*command)
        assert 2 == done.returncode
        first, second = done.stderr.splitlines()
        assert f"{file}:2: listen.prot" in first
        assert "port" in first
        assert f"{file}:6: models.m.replicas" in second


def test_check_prints_the_commands_and_starts_nothing(home: Home) -> None:
    done = home.gateway("check", str(DEMO))

    assert 0 == done.returncode, done.stderr
    assert "-m loadtest.servers.simulator --model simulated --served-model-name demo" in done.stdout
    assert "# demo-1" in done.stdout
    assert [] == list(home.root.iterdir())


def test_check_shows_no_secret_and_names_static_workers(home: Home) -> None:
    file = home.write("models:\n  m:\n    workers:\n      - {url: 'http://10.0.0.1:8000', api_key: sesame-9}\n")
    done = home.gateway("check", file)

    assert 0 == done.returncode, done.stderr
    assert "m-static-0: static worker http://10.0.0.1:8000" in done.stdout
    assert "sesame" not in done.stdout + done.stderr


def test_a_model_folder_that_does_not_exist_ends_with_3(home: Home) -> None:
    line = one_line(home.gateway("up", "./nothing-here"), 3)

    assert "nothing-here" in line
    assert "does not exist" in line


def test_an_engine_interpreter_that_does_not_exist_names_its_key(home: Home) -> None:
    line = one_line(home.gateway("up", "org/model", "--engine-python", "/no/such/python"), 2)

    assert "engines.default.python" in line
    assert "/no/such/python" in line


def test_a_python_without_vllm_ends_with_3_and_the_command_that_mends_it(home: Home) -> None:
    done = home.gateway("up", "org/model", "--engine-python", sys.executable)

    assert 3 == done.returncode, done.stdout + done.stderr
    assert "engines.default.python" in done.stderr
    assert "To mend it:" in done.stderr
    assert [] == list((home.state / "records").iterdir())


@pytest.mark.parametrize(("option", "key"), [("--port", "listen.port"), ("--admin-port", "admin.port")])
def test_a_port_in_use_ends_with_4_before_anything_is_set_up(home: Home, option: str, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        line = one_line(home.gateway("up", "-c", str(DEMO), option, port), 4)

    assert f"{key}: 127.0.0.1:{port} is already in use" in line
    assert option in line
    assert not (home.root / "cache").exists()


def test_a_second_gateway_with_the_same_state_ends_with_5(home: Home) -> None:
    with held(home.state):
        line = one_line(home.gateway("up", "-c", str(DEMO)), 5)

    assert f"pid {os.getpid()}" in line
    assert "GATEWAY_STATE_DIR" in line


def test_a_public_address_without_keys_is_refused(home: Home) -> None:
    for address in ("0.0.0.0", "::"):
        line = one_line(home.gateway("up", "-c", str(DEMO), GATEWAY_HOST=address), 2)
        assert "listen.host" in line
        assert "allow_anonymous" in line


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["status", "--json"], ["workers"], ["workers", "restart", "m-0"], ["gpus", "return", "0"]],
    ids=" ".join,
)
def test_without_a_running_gateway_operating_it_ends_with_7(home: Home, arguments: list[str]) -> None:
    """And makes no state directory on the way."""
    line = one_line(home.gateway(*arguments), 7)

    assert "gateway up" in line
    assert not home.state.exists()


def test_logs_work_without_a_running_gateway(home: Home) -> None:
    """The moment they are needed most is after everything has crashed."""
    with held(home.state) as state:
        (state.logs / "m-0.log").write_text("one\ntwo\n")
        (state.logs / "m-0.previous.log").write_text("why it crashed\n")

    assert "two\n" == home.gateway("logs", "m-0", "-n", "1").stdout
    assert "why it crashed\n" == home.gateway("logs", "m-0", "--previous").stdout
    assert "m-0" in one_line(home.gateway("logs", "m-1"), 3)


def test_doctor_tells_what_is_wrong_and_ends_with_3(home: Home) -> None:
    """A port that is in use is a blocker for serving; nothing is installed by looking."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = home.gateway("doctor", "--for", "demo", GATEWAY_PORT=port)

    assert 3 == done.returncode, done.stdout
    assert f"port {port} on 127.0.0.1 is in use" in done.stdout
    assert "to mend it:" in done.stdout
    assert [] == list(home.root.iterdir())


def test_a_fleet_that_cannot_start_ends_with_6_and_leaves_nothing(home: Home) -> None:
    """A flag the engine refuses: one sentence with the key, no process, no record, no socket."""
    file = home.write(
        "models:\n  m:\n    model: simulated\n    launch:\n      extra_args: [--sim-fail-start, bad-flag]\n"
        "engines:\n  default:\n    command: ['{python}', '-m', 'loadtest.servers.simulator']\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = [str(each.getsockname()[1]) for each in (one, two)]
    done = home.gateway("up", "-c", file, "--port", ports[0], "--admin-port", ports[1])

    assert 6 == done.returncode, done.stdout + done.stderr
    assert "models.m.launch" in done.stderr.splitlines()[-1]
    assert ["admin.token", "logs", "records", "supervisor.lock"] == sorted(path.name for path in home.state.iterdir())
    assert [] == list((home.state / "records").iterdir())


def test_json_status_is_one_document(home: Home) -> None:
    """`status --json` prints nothing else, also when there is nothing to print."""
    done = home.gateway("status", "--json")

    assert "" == done.stdout
    with pytest.raises(json.JSONDecodeError):
        json.loads(done.stdout)


def test_what_is_bound_to_fail_is_told_before_anything_is_started(home: Home) -> None:
    """Nine attention heads cannot be shared by two: `check` and `up` say so with the key, and no engine is built."""
    model = home.root / "nine"
    model.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 9, "num_key_value_heads": 3}
    (model / "config.json").write_text(json.dumps(config))
    (model / "model.safetensors").write_bytes(b"0" * 1024)
    engine = {"command": ["{python}", "-m", "loadtest.servers.simulator"]}
    file = home.write(
        json.dumps(
            {
                "models": {"nine": {"model": str(model), "launch": {"tensor_parallel_size": 2}}},
                "engines": {"default": engine},
            }
        )
    )
    for command in (["check", file], ["up", "-c", file, "--port", "18000", "--admin-port", "18001"]):
        line = one_line(home.gateway(*command), 2)
        assert "models.nine.launch.tensor_parallel_size" in line
        assert "9" in line
    assert not list((home.state / "records").glob("*")) if home.state.exists() else True


def test_a_rolling_restart_needs_to_know_of_what(home: Home) -> None:
    assert "--all" in one_line(home.gateway("workers", "restart"), 2)
    assert "--all" in one_line(home.gateway("workers", "restart", "m-0", "--all"), 2)


def test_reload_and_restart_need_a_running_gateway_and_sweep_does_not(home: Home) -> None:
    assert "no gateway is running" in one_line(home.gateway("reload"), 7)
    assert "no gateway is running" in one_line(home.gateway("reload", "--processes"), 7)
    assert "--dry-run" in one_line(home.gateway("reload", "--processes", "--dry-run"), 2)
    assert "no gateway is running" in one_line(home.gateway("workers", "restart", "--all"), 7)
    swept = home.gateway("sweep")
    assert (0, "no worker of an earlier gateway is left\n") == (swept.returncode, swept.stdout)
