"""`python -m grafana`."""

import sys

from grafana.generate import main

sys.exit(main(sys.argv[1:]))
