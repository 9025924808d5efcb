"""`make observe`, without any server: what it writes and what it says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml

from grafana.observe import NoGateway, Options, final_block, main, prometheus_configuration, require_gateway
from grafana.server import find_grafana, grafana_environment, write_provisioning
from tests.e2e.served import alive, free_port, free_ports, wait_until
from tests.grafana.reading import FOLDER, ROOT

PROVISIONING = ROOT / "grafana" / "provisioning"
DEPLOYED = ROOT / "deploy" / "prometheus"


def executable(path: Path) -> Path:
    """A program that does nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def options(folder: Path) -> Options:
    """As on the command line."""
    return Options("http://127.0.0.1:7001", 7090, 7030, folder)


def test_prometheus_gets_the_deployed_configuration_with_this_machines_addresses(tmp_path: Path) -> None:
    """Every job asks the named admin port; the rules are found from anywhere."""
    text = (DEPLOYED / "prometheus.yml").read_text(encoding="utf-8")

    written = prometheus_configuration(text, "http://127.0.0.1:7001", DEPLOYED / "rules")

    assert "8001" not in written
    configuration = yaml.safe_load(written)
    jobs = {job["job_name"]: job for job in configuration["scrape_configs"]}
    assert [{"targets": ["127.0.0.1:7001"]}] == jobs["gateway"]["static_configs"]
    assert "http://127.0.0.1:7001/discovery" == jobs["vllm"]["http_sd_configs"][0]["url"]
    assert [f"{DEPLOYED / 'rules'}/*.yml"] == configuration["rule_files"]


def test_grafana_is_provisioned_with_this_machines_addresses(tmp_path: Path) -> None:
    """A data source and the folder of dashboards; nothing of the deployed paths is left."""
    write_provisioning(PROVISIONING, tmp_path, prometheus="http://127.0.0.1:7090", dashboards=FOLDER)

    (source,) = yaml.safe_load((tmp_path / "datasources" / "vllm-gateway.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((tmp_path / "dashboards" / "vllm-gateway.yml").read_text())["providers"]
    assert ("prometheus", "http://127.0.0.1:7090") == (source["type"], source["url"])
    assert ("file", str(FOLDER)) == (provider["type"], provider["options"]["path"])


def test_the_data_sources_interval_is_the_scrape_interval() -> None:
    """`$__rate_interval` is made from it: smaller, and rates have holes."""
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "vllm-gateway.yml").read_text())["datasources"]
    prometheus = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text(encoding="utf-8"))

    assert prometheus["global"]["scrape_interval"] == source["jsonData"]["timeInterval"]


def test_a_grafana_from_an_archive_is_started_with_its_own_files(tmp_path: Path) -> None:
    """They lie beside bin/, also when PATH has a link to the program."""
    program = executable(tmp_path / "grafana-11.6" / "bin" / "grafana")
    (tmp_path / "grafana-11.6" / "conf").mkdir()
    (tmp_path / "grafana-11.6" / "conf" / "defaults.ini").touch()
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "grafana").symlink_to(program)

    found = find_grafana({"PATH": str(tmp_path / "path")})

    assert found is not None
    link = str(tmp_path / "path" / "grafana")
    assert [link, "server", "--homepath", str(tmp_path / "grafana-11.6")] == list(found.command)


def test_an_old_packaged_grafana_is_started_as_it_wants(tmp_path: Path) -> None:
    """`grafana-server`, with the package's files."""
    executable(tmp_path / "grafana-server")

    found = find_grafana({"PATH": str(tmp_path)}, packaged_home=Path("/usr/share/grafana"))

    assert found is not None
    assert [str(tmp_path / "grafana-server"), "--homepath", "/usr/share/grafana"] == list(found.command)


def test_grafana_is_reachable_from_this_machine_alone_and_sends_nothing(tmp_path: Path) -> None:
    """And a viewer needs no login."""
    settings = grafana_environment(tmp_path, tmp_path, FOLDER, 7030)

    assert "127.0.0.1" == settings["GF_SERVER_HTTP_ADDR"]
    assert "Viewer" == settings["GF_AUTH_ANONYMOUS_ORG_ROLE"]
    assert {"false"} == {value for name, value in settings.items() if name.startswith("GF_ANALYTICS_")}
    assert Path(settings["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]).is_file()


def test_without_grafana_it_says_how_to_see_the_dashboards(tmp_path: Path) -> None:
    """Both ways, and the console, which needs neither program."""
    text = final_block(options(tmp_path), ROOT, grafana=False)

    assert "No Grafana is on PATH" in text
    assert all(str(ROOT / "grafana" / name) in text for name in ("provisioning", "dashboards"))
    assert "http://127.0.0.1:7001/console" in text
    assert "http://127.0.0.1:7090" in text
    assert "http://127.0.0.1:7030" not in text


def test_with_grafana_it_says_where_it_is(tmp_path: Path) -> None:
    """And nothing of importing."""
    text = final_block(options(tmp_path), ROOT, grafana=True)

    assert "http://127.0.0.1:7030/dashboards" in text
    assert "import" not in text


def test_without_a_gateway_nothing_is_started(tmp_path: Path) -> None:
    """The message has what was expected and the commands that start one."""
    with pytest.raises(NoGateway, match=r"expected a running gateway's admin port at .*make demo") as caught:
        require_gateway(f"http://127.0.0.1:{free_port()}")

    assert 7 == caught.value.exit_code


def test_an_address_that_is_none_is_said_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, no folder, exit code 7."""
    monkeypatch.setattr("signal.signal", lambda number, handler: None)

    code = main(["--admin", "http://127.0.0.1:port", "--folder", str(tmp_path / "kept")], {})

    assert 7 == code
    assert "expected a running gateway" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


STAND_IN = """#!{python}
import http.server, os, sys
address = next(each for each in sys.argv if each.startswith("--web.listen-address=")).partition("=")[2]
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
host, port = address.split(":")
http.server.HTTPServer((host, int(port)), Ready).serve_forever()
"""


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_leaves_no_prometheus_behind(tmp_path: Path, number: signal.Signals) -> None:
    """Its programs have sessions of their own, so nobody else ends them, and their port would stay in use."""
    program = executable(tmp_path / "bin" / "prometheus")
    program.write_text(STAND_IN.format(python=sys.executable), encoding="utf-8")
    admin, prometheus = free_ports(2)
    health = subprocess.Popen([program, f"--web.listen-address=127.0.0.1:{admin}"], stderr=subprocess.DEVNULL)
    command = [
        *("env", f"--default-signal={number.name.removeprefix('SIG')}", sys.executable, "-m", "grafana.observe"),
        *("--admin", f"http://127.0.0.1:{admin}", "--prometheus-port", str(prometheus), "--folder", str(tmp_path)),
    ]
    environ = {**os.environ, "PATH": f"{program.parent}:/usr/bin:/bin"}
    try:
        wait_until(partial(listens, admin), within_s=30, what="the stand-in of the admin port")
        with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert any("Ctrl-C" in line for line in process.stdout)
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            code = process.wait(30)
    finally:
        health.kill()
        health.wait()

    assert 1 == len(children)
    assert 0 == code
    assert [] == alive(children)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
