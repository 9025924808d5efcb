"""
Builds the engine's environment and the embedded model in the user's cache, and starts nothing: `make engine`.

For installing ahead of time (images, machines that lose their network later) and for the tests, which share it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.errors import EnvironmentProblem
from gateway.setup.builds import suitable_build
from gateway.setup.directories import directories
from gateway.setup.doctor import Purpose, Severity, doctor_report, findings
from gateway.setup.engine import EngineRequest, built_engine, ensure_engine
from gateway.setup.facts import gather_facts
from gateway.setup.model import built_default_model, ensure_default_model
from gateway.setup.progress import ProgressPrinter


def prepare(environ: Mapping[str, str], *, tell_paths: bool = False) -> int:
    """
    Exit code 0 when both are there, 3 when this machine lacks something; GATEWAY_ENGINE_PYTHON brings an engine.

    `tell_paths` prints where they are, as one JSON object: for programs that run the engine without the gateway.
    """
    report = ProgressPrinter(sys.stderr)
    own = environ.get("GATEWAY_ENGINE_PYTHON")
    try:
        cache = directories(environ).cache
        facts = gather_facts(environ, cache=cache, ports=(), model_built=built_default_model(cache) is not None)
        build = suitable_build("auto", facts)
        if own or (build is not None and built_engine(build, cache) is not None):
            facts = gather_facts(environ, cache=cache, ports=(), engine_built=True, model_built=facts.model_built)
        found = findings(facts, Purpose.TEST, "own" if own else "auto")
        if found:
            print(doctor_report(found), file=sys.stderr)
        if any(one.severity is Severity.BLOCKER for one in found):
            return EnvironmentProblem.exit_code
        request = EngineRequest(python=Path(own) if own else None)
        engine = ensure_engine(request, cache, facts, report, environ)
        model = ensure_default_model(engine.python, cache, report, environ)
        if tell_paths:
            print(json.dumps({"python": str(engine.python), "model": str(model)}))
    except EnvironmentProblem as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("Interrupted; the next run starts over.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(prepare(os.environ, tell_paths=sys.argv[1:] == ["--paths"]))
