"""JSON Schemas of what others read and write: ``graph.yaml``, and the plan, question and answer of ``docs/plan.md``.

They are drawn from the classes the code itself uses, so they cannot lag behind; ``rulespack schema NAME`` prints one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rulespack.schemas.graph import graph_schema
from rulespack.schemas.plan import answer_schema, plan_schema, question_schema

#: The schemas by name.
SCHEMAS: Final[Mapping[str, Callable[[], dict[str, Any]]]] = {
    "graph": graph_schema,
    "plan": plan_schema,
    "question": question_schema,
    "answer": answer_schema,
}
