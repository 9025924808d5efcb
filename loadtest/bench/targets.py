"""
The relays that are compared, each started on one port in front of the same two scripted workers.

A target that is not installed is left out and named; the comparison never installs anything itself (`make bench` does,
into `.build/bench-peers`).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

MODEL = "m"


@dataclass(frozen=True, slots=True)
class Target:
    """A relay: the command that starts it, and for our own the address of its metrics."""

    name: str
    command: tuple[str, ...]
    metrics_url: str | None = None


def gateway(folder: Path, port: int, admin_port: int, upstreams: tuple[int, ...], *, processes: int = 1) -> Target:
    """
    This project in its default configuration: request log, metrics, routing over both workers. With several gateway
    processes it is a target of its own name.
    """
    name = "vllm-gateway" if processes == 1 else f"vllm-gateway x{processes}"
    config = {
        "listen": {"port": port},
        "admin": {"port": admin_port},
        "processes": processes,
        "models": {MODEL: {"workers": [{"url": f"http://127.0.0.1:{upstream}"} for upstream in upstreams]}},
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    # A state directory of its own: the machine's own gateway may be running.
    command = ("env", f"GATEWAY_STATE_DIR={folder / 'state'}", sys.executable, "-m", "gateway", "up", "-c", str(file))
    return Target(name, command, f"http://127.0.0.1:{admin_port}/metrics")


def nginx(folder: Path, unpacked: Path, port: int, upstreams: tuple[int, ...]) -> Target | None:
    """nginx with one worker process, unbuffered, keep-alive to the workers; from PATH or unpacked by this project."""
    path = os.pathsep.join((os.defpath, "/usr/sbin", "/usr/local/sbin", str(unpacked / "nginx-light/usr/sbin")))
    program = shutil.which("nginx", path=path)
    if program is None:
        return None
    servers = " ".join(f"server 127.0.0.1:{upstream};" for upstream in upstreams)
    file = folder / "nginx.conf"
    file.write_text(
        f"""
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000;
  upstream workers {{ {servers} keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""
    )
    return Target("nginx", (program, "-c", str(file), "-p", str(folder)))


def vllm_router(peers: Path, port: int, metrics_port: int, upstreams: tuple[int, ...]) -> Target | None:
    """vllm-router (Rust), round robin. None when the peers' environment lacks it."""
    program = peers / "bin" / "vllm-router"
    if not program.exists():
        return None
    workers = [f"http://127.0.0.1:{upstream}" for upstream in upstreams]
    command = (
        *(str(program), "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--prometheus-port", str(metrics_port), "--worker-urls", *workers),
    )
    return Target("vllm-router", command)


def smg(peers: Path, port: int, metrics_port: int, upstreams: tuple[int, ...]) -> Target | None:
    """smg (Rust), round robin. None when the peers' environment lacks it."""
    program = peers / "bin" / "smg"
    if not program.exists():
        return None
    workers = [f"http://127.0.0.1:{upstream}" for upstream in upstreams]
    command = (
        *(str(program), "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--prometheus-port", str(metrics_port), "--worker-urls", *workers),
    )
    return Target("smg", command)
