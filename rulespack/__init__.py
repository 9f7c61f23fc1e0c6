"""How a vLLM release lays out its KV cache for a model, without a GPU.

>>> import rulespack
>>> graph = rulespack.load_model("qwen3-14b")
>>> plan = rulespack.engine("0.31.0").plan(graph, rulespack.Deployment(tensor_parallel_size=2))
>>> plan.bytes_per_block
1310720

Everything public is named here and imported when it is first used, so that ``import rulespack`` costs next to nothing.
"""

import sys
from types import ModuleType

TYPE_CHECKING = (
    False  # what type checkers take for true; importing typing for it would cost more than all the rest here
)
if TYPE_CHECKING:
    from rulespack.batch import BadQuestion
    from rulespack.catalog import UnknownModel, load_model
    from rulespack.deployment import GPUS, Deployment, Gpu
    from rulespack.derive.errors import InvalidConfig
    from rulespack.diff import Comparison, Pair, compare
    from rulespack.engine import Engine, engine
    from rulespack.errors import BadDeployment, BadGraph, BadLength, BadPack, Refused, RulespackError, UnknownRelease
    from rulespack.graph.capability import for_capability
    from rulespack.graph.model import ModelGraph
    from rulespack.graph.problems import InvalidGraph, Problem
    from rulespack.graph.resident import precision_schedule, resident_weights
    from rulespack.graph.sequence import SequenceState, state_bytes_per_sequence
    from rulespack.graph.shares import ExpertPadding
    from rulespack.graph.weights import Amount, Parameters, WeightFormat
    from rulespack.hooks import hookimpl
    from rulespack.kv.pages import PageCount
    from rulespack.kv.plan import Capacity, Group, Plan, Reason, Request, Resolved, Stage
    from rulespack.kv.specs import Spec
    from rulespack.releases import releases

__version__ = "0.1.0"

_HOME = {
    "Amount": "rulespack.graph.weights",
    "BadDeployment": "rulespack.errors",
    "BadGraph": "rulespack.errors",
    "BadLength": "rulespack.errors",
    "BadPack": "rulespack.errors",
    "BadQuestion": "rulespack.batch",
    "Capacity": "rulespack.kv.plan",
    "Comparison": "rulespack.diff",
    "Deployment": "rulespack.deployment",
    "Engine": "rulespack.engine",
    "ExpertPadding": "rulespack.graph.shares",
    "GPUS": "rulespack.deployment",
    "Gpu": "rulespack.deployment",
    "Group": "rulespack.kv.plan",
    "InvalidConfig": "rulespack.derive.errors",
    "InvalidGraph": "rulespack.graph.problems",
    "ModelGraph": "rulespack.graph.model",
    "PageCount": "rulespack.kv.pages",
    "Pair": "rulespack.diff",
    "Parameters": "rulespack.graph.weights",
    "Plan": "rulespack.kv.plan",
    "Problem": "rulespack.graph.problems",
    "Reason": "rulespack.kv.plan",
    "Refused": "rulespack.errors",
    "Request": "rulespack.kv.plan",
    "Resolved": "rulespack.kv.plan",
    "RulespackError": "rulespack.errors",
    "SequenceState": "rulespack.graph.sequence",
    "Spec": "rulespack.kv.specs",
    "Stage": "rulespack.kv.plan",
    "UnknownModel": "rulespack.catalog",
    "UnknownRelease": "rulespack.errors",
    "WeightFormat": "rulespack.graph.weights",
    "compare": "rulespack.diff",
    "engine": "rulespack.engine",
    "for_capability": "rulespack.graph.capability",
    "hookimpl": "rulespack.hooks",
    "load_model": "rulespack.catalog",
    "precision_schedule": "rulespack.graph.resident",
    "releases": "rulespack.releases",
    "resident_weights": "rulespack.graph.resident",
    "state_bytes_per_sequence": "rulespack.graph.sequence",
}

__all__ = [
    "Amount",
    "BadDeployment",
    "BadGraph",
    "BadLength",
    "BadPack",
    "BadQuestion",
    "Capacity",
    "Comparison",
    "Deployment",
    "Engine",
    "ExpertPadding",
    "GPUS",
    "Gpu",
    "Group",
    "InvalidConfig",
    "InvalidGraph",
    "ModelGraph",
    "PageCount",
    "Pair",
    "Parameters",
    "Plan",
    "Problem",
    "Reason",
    "Refused",
    "Request",
    "Resolved",
    "RulespackError",
    "SequenceState",
    "Spec",
    "Stage",
    "UnknownModel",
    "UnknownRelease",
    "WeightFormat",
    "__version__",
    "compare",
    "engine",
    "for_capability",
    "hookimpl",
    "load_model",
    "precision_schedule",
    "releases",
    "resident_weights",
    "state_bytes_per_sequence",
]


class _Package(ModuleType):
    """The package, where ``engine`` and ``releases`` are always the functions.

    The import system binds a submodule to its package under the submodule's name once it is loaded; for a module that
    is named as the public function it holds, the function is what belongs there.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and _HOME.get(name) == value.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    __import__(home)
    value = getattr(sys.modules[home], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
