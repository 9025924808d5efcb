"""
Load generation for OpenAI-compatible endpoints, and the scripted servers it is checked against.

`python -m loadtest` runs a load test. `cli` asks and judges; `measured_run` puts progress, metrics and verdict around
`locust_run`, which drives `generator` in this process or in those of `worker`; `call` makes one request through
`http_client` and `stream_timing` and books it in a `ledger`. `scenarios` and `datasets` say what is sent, `report`
shows what came of it. `loadtest.servers` holds asyncio servers and never imports gevent: the two must not share a
process. Nothing here imports `gateway`.
"""
