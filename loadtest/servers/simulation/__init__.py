"""The parts of the simulated vLLM worker: engine model, answers, routes, metrics, start-up log, HTTP server."""
