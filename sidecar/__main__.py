"""`python -m sidecar` is `sidecar`."""

import sys

from sidecar.interrupts import quiet

with quiet():
    from sidecar.cli import main

sys.exit(main())
