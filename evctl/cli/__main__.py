"""`python -m evctl.cli` is `evctl`."""

import sys

from evctl.cli.main import main

sys.exit(main())
