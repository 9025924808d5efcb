"""
A pytest plugin, `-p tests.compiled`: the tests import the relay's hot modules in their compiled form.

What is tested is then what gateway processes run; without it, the sources. Fails where nothing has been built, because
a run that silently tested the sources again would look the same.
"""

from __future__ import annotations

from gateway.setup.compiled import activate

if not activate():
    raise SystemExit("the present sources have not been compiled: python -m gateway.setup.compiled")
