"""
Scripted servers: one program family for tests, benchmarks and the demo.

`fault_server` plays byte-level scripts and records what it received; `simulator` behaves as a vLLM worker without an
engine; `frames` holds the exact bytes vLLM puts on the wire; `scripts` combines them into ready-made answers. Asyncio
and the standard library only (plus httptools in the simulator).
"""
