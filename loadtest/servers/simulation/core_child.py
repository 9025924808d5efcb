"""
The simulated EngineCore process: answers one byte for every byte, so that stopping or killing it is felt at once.

As with vLLM, it stays when its parent is killed, and a supervisor has to sweep it; it leaves by itself after a while so
that a failed test does not leave processes behind for ever. Run by path: `core_child.py VLLM::EngineCore FD ORPHAN_S`.
"""

import contextlib
import signal
import socket
import sys
import time


def main(argv: list[str]) -> None:
    """Serves heartbeats on the inherited socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(argv[1])
    beats = socket.socket(fileno=int(argv[2]))
    while data := beats.recv(4096):
        beats.sendall(data)
    time.sleep(float(argv[3]))


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):
        main(sys.argv)
