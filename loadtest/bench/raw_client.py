"""
A second client that measures streams, to check the first one against: plain sockets, one selector, no parser.

It shares no code with the load generator. It knows the golden server's tokens by their bytes, sends its requests spread
over a gap, and prints one JSON object: request id -> [moment of sending, moments of the reads that held each token].
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time

TOKEN = b'"content":" x"'
END = b"0\r\n\r\n"


def main(argv: list[str]) -> int:
    """PORT STREAMS SPREAD_S"""
    port, streams, spread_s = int(argv[0]), int(argv[1]), float(argv[2])
    selector = selectors.DefaultSelector()
    found: dict[str, tuple[float, list[float]]] = {}
    tails: dict[str, bytes] = {}
    for number in range(streams):
        name = f"raw-{number}"
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: {name}\r\ncontent-length: 2\r\n"
        found[name] = (time.perf_counter(), [])
        sock.sendall(head.encode() + b"\r\n{}")
        tails[name] = b""
        selector.register(sock, selectors.EVENT_READ, name)
        time.sleep(spread_s / streams)
    while selector.get_map():
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            data, now = key.fileobj.recv(65536), time.perf_counter()
            seen = tails[key.data] + data
            found[key.data][1].extend([now] * seen.count(TOKEN))
            tails[key.data] = seen[-len(TOKEN) + 1 :]
            if not data or seen.endswith(END):
                selector.unregister(key.fileobj)
                key.fileobj.close()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
