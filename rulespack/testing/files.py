"""Where pins are kept: one text file for each, ``__snapshots__/<test file>/<test>.txt``."""

from __future__ import annotations

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode


class PinFile(SingleFileSnapshotExtension):
    """syrupy's single files, as text."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"
