"""``python -m educe`` is ``educe``."""

from __future__ import annotations

import sys

from educe.cli.main import main

sys.exit(main())
