"""What changed between two releases: :func:`compare`, and the typed results that reports are drawn from.

>>> import rulespack
>>> comparison = rulespack.compare("0.29.0", "0.31.0", ["gemma-4-26b-a4b-nvfp4", "qwen3-14b"])
>>> comparison.counts
{'changed': 1, 'same': 1}
>>> [(change.key, change.old, change.new) for change in comparison.pairs[0].changes][:1]
[('resolved.block_size', 16, 64)]
"""

from rulespack.diff.comparison import TOKENS, Question, catalog_graph, catalog_models, compare, compare_questions
from rulespack.diff.model import (
    STATUSES,
    AcceptsChange,
    Answer,
    CacheChange,
    Change,
    Comparison,
    GroupChange,
    Pair,
    ReasonChange,
    Refusal,
    RequestChange,
    Status,
)

__all__ = [
    "STATUSES",
    "TOKENS",
    "AcceptsChange",
    "Answer",
    "CacheChange",
    "Change",
    "Comparison",
    "GroupChange",
    "Pair",
    "Question",
    "ReasonChange",
    "Refusal",
    "RequestChange",
    "Status",
    "catalog_graph",
    "catalog_models",
    "compare",
    "compare_questions",
]
