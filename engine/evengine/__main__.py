"""`python -m evengine --config FILE` runs one engine."""

import sys

from evengine.main import main

sys.exit(main())
