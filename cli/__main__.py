"""`python -m cli`, where the package is not installed."""

import sys

from cli.main import main

sys.exit(main())
