"""The command line, for ``python -m tidelog``."""

import sys

from tidelog.cli import main

sys.exit(main())
