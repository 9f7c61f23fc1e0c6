"""``python -m rulespack`` is the ``rulespack`` command."""

import sys

from rulespack.cli import main

sys.exit(main())
