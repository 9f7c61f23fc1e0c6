"""``python -m tests.documents [FILE ...]`` runs documents, all if none is named, and prints what is not so.

``--write`` puts what is printed now into their console blocks, and draws the pages that are generated.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .blocks import DOCUMENTS
from .reference import FILE, cli_reference
from .running import Document
from .scratch import Scratch


def main(words: list[str]) -> int:
    """Run them; 1 where something is not so and is left so."""
    writes = "--write" in words
    files = [Path(word).resolve() for word in words if word != "--write"] or DOCUMENTS
    wrong = False
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            scratch = Scratch(Path(folder))
            if file == FILE and writes:
                file.write_text(cli_reference(scratch), encoding="utf-8")
            document = Document(file, scratch)
            for flaw in document.flaws():
                wrong = True
                sys.stdout.write(f"{file}: {flaw}\n")
            if writes:
                file.write_text(document.renewed(), encoding="utf-8")
    return int(wrong and not writes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
