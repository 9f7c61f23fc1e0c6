"""``python -m tests.agreement`` prints the table of the README; ``--list`` also every case that is not equal."""

from __future__ import annotations

import sys

from .score import listing, table

if __name__ == "__main__":
    if "--list" in sys.argv[1:]:
        sys.stdout.write(f"{listing()}\n\n")
    sys.stdout.write(f"{table()}\n")
