"""
Load generation for OpenAI-compatible endpoints, and the scripted servers it is checked against.

`python -m loadtest` runs a load test (Locust, gevent). `loadtest.servers` holds asyncio servers and never imports
gevent: the two must not share a process. Nothing here imports `gateway`.
"""
