"""``python -m tests.agreement`` prints the table of the README.

``--list`` also prints every case that is not equal; ``--write`` puts the table into README.md.
"""

from __future__ import annotations

import sys

from .score import listing, table, write

if __name__ == "__main__":
    if "--list" in sys.argv[1:]:
        sys.stdout.write(f"{listing()}\n\n")
    if "--write" in sys.argv[1:]:
        write()
    sys.stdout.write(f"{table()}\n")
