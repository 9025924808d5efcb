"""`python -m loadtest.offline`, as `make offline-bench` runs it."""

import os
import signal
import sys

from loadtest.offline.cli import main

if __name__ == "__main__":
    # As Ctrl-C: engines that are in the middle of a pass end at once, and not after it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:], os.environ))
