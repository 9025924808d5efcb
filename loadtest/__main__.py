"""`python -m loadtest`: patches the standard library for gevent before anything else is imported, then runs the CLI."""

import sys

try:
    from gevent import monkey
except ImportError:
    sys.exit("loadtest: expected Locust and gevent, found neither: pip install 'vllm-gateway[loadtest]'")

monkey.patch_all()

import os  # noqa: E402 - the patch must come first

from loadtest.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
