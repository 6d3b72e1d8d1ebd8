"""`python -m logflume` is the `logflume` command."""

import sys

from logflume.cli import main

sys.exit(main())
