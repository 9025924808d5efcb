"""`python -m loadtest.offline`, as `make offline-bench` runs it."""

import os
import sys

from loadtest.offline.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
