"""`python -m loadtest`: patches the standard library for gevent before anything else is imported, then runs the CLI."""

from gevent import monkey

monkey.patch_all()

import os  # noqa: E402 - the patch must come first
import sys  # noqa: E402

from loadtest.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
