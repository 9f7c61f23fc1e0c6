"""What the deriver says when a configuration cannot be translated."""

from __future__ import annotations

from rulespack.errors import RulespackError


class InvalidConfig(RulespackError):
    """A vendor configuration that cannot be read, or that no family translates.

    ``file`` is the file at fault, ``path`` the key inside it (``text_config.num_attention_heads``; empty for the whole
    file), ``problem`` what is wrong and what to do, ``architecture`` the model class where it is already known,
    ``line`` the line of text that is not JSON, counted from 1.
    """

    def __init__(
        self, file: str, path: str, problem: str, architecture: str | None = None, line: int | None = None
    ) -> None:
        self.file = file
        self.path = path
        self.problem = problem
        self.architecture = architecture
        self.line = line
        where = f"{file}: {path}" if path else file
        if line is not None:
            where += f": line {line}"
        served = f" [{architecture}]" if architecture else ""
        super().__init__(f"{where}: {problem}{served}")


class NotTranslated(InvalidConfig):
    """A configuration that is no mistake of its author's: an architecture or a key no family here translates."""

    unmodelled = True


class Inconsistent(InvalidConfig):
    """Keys of the right kinds that do not hang together, or a value no such model has.

    In a vendor's file that is a mistake. Laid over one it is beyond us: an engine lays its overrides over a
    configuration that its class has already checked and completed, and may go on with what no file could say.
    """
