"""
A gateway process without a gateway: speaks the control channel and answers every HTTP request with its pid.

Run by the supervisor like the real one. What it does besides is told by the configuration's first model name:

    m           answers; drains at once when told, and when the channel ends
    dies        exits with 3 before it listens
    second-dies the same, but only in the second slot
    once        in the second slot only the first one serves, the next ones exit with 3 (`keys_file` is the marker)
    damaged     exits with 1 before it listens, as with a build that cannot be imported, unless it is to run the sources
    chatty      reports loads without end
    garbage     writes what is no message
    deaf        never reads its channel after the configuration
    hangs       ignores Drain (the supervisor must kill it)

With `--interpreted` it says that its modules are not compiled. GET /snapshot answers the newest snapshot's version and
`draining`, and the pid; GET /fail reports a failure of worker m-0 and a load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket

from gateway.messages import (
    Configure,
    Drain,
    Hello,
    LoadReport,
    Snapshot,
    WorkerFailure,
    WorkerLoad,
    decode_to_gateway,
    encode,
)
from gateway.types import FleetSnapshot


def first_time(marker: str) -> bool:
    """Whether nobody has asked before; for the next one somebody has."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


async def run(listener: socket.socket, control: socket.socket, *, compiled: bool) -> None:
    reader, writer = await asyncio.open_connection(sock=control)
    configure = decode_to_gateway(await reader.readline())
    assert isinstance(configure, Configure)
    mode = next(iter(json.loads(configure.settings_json)["models"]))
    second = configure.slot == 1
    if mode == "dies" or (
        second and (mode == "second-dies" or (mode == "once" and not first_time(configure.keys_file)))
    ):
        raise SystemExit(3)
    if mode == "damaged" and compiled:
        raise SystemExit(1)
    newest: list[FleetSnapshot] = []
    over = asyncio.Event()
    answering: set[asyncio.Task[None] | None] = set()
    idle = asyncio.Event()
    idle.set()

    async def answer(client: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        idle.clear()
        try:
            await reply(client, out)
        finally:
            answering.discard(asyncio.current_task())
            if not answering:
                idle.set()

    async def reply(client: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        line = await client.readline()
        while (await client.readline()).strip():
            pass
        body: object = os.getpid()
        if b"/snapshot" in line and newest:
            body = {"version": newest[-1].version, "draining": newest[-1].draining, "pid": os.getpid()}
        if b"/fail" in line:
            writer.write(encode(WorkerFailure(worker="m-0", launch_id="l1", kind="connect", detail="refused")))
            load = WorkerLoad(worker="m-0", launch_id="l1", in_flight=2, silent_s=0.5)
            writer.write(encode(LoadReport(loads=(load,))))
            await writer.drain()
        text = json.dumps(body).encode()
        out.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
        await out.drain()
        out.close()

    server = await asyncio.start_server(answer, sock=listener)
    writer.write(encode(Hello(pid=os.getpid(), compiled=compiled)))
    if mode == "garbage":
        writer.write(b"this is no message\n")
    await writer.drain()
    if mode == "chatty":
        while True:
            writer.write(encode(LoadReport(loads=())) * 1000)
            await writer.drain()
    if mode == "deaf":
        await asyncio.Event().wait()
    while line := await reader.readline():
        message = decode_to_gateway(line)
        if isinstance(message, Snapshot):
            newest.append(message.fleet)
        if isinstance(message, Drain) and mode != "hangs":
            over.set()
            break
    server.close()
    for _ in range(10):  # what was accepted is answered
        await asyncio.sleep(0)
    if mode in ("m", "second-dies", "once"):
        await idle.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--listen-fd", "--control-fd", "--metrics-fd", "--in-flight-fd"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--interpreted", action="store_true")
    given = parser.parse_args()
    os.fstat(given.metrics_fd)
    os.fstat(given.in_flight_fd)
    listener, control = socket.socket(fileno=given.listen_fd), socket.socket(fileno=given.control_fd)
    asyncio.run(run(listener, control, compiled=not given.interpreted))


if __name__ == "__main__":
    main()
