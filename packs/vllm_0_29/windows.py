"""``disable_sliding_window``: a model whose window layers attend to everything, no longer than its window was.

Source: ``vllm/config/model.py: ModelConfig.__post_init__`` takes the window out of the configuration once the length is
settled, ``_get_and_verify_max_len`` bounds the length by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rulespack.errors import not_modelled

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.graph.model import Attention
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules


def check_windows(rules: Rules, model: Model, deployment: Deployment) -> None:
    """Not modelled: windows that a class does not take from the configuration's one key for them, or a draft's."""
    if not deployment.disable_sliding_window:
        return
    if deployment.speculative_config is not None:
        raise not_modelled("disable-sliding-window-modelled", "disable_sliding_window is not modelled beside a draft")
    if not model.architecture.window_elsewhere and any(cls.window is not None for cls in model.classes):
        raise not_modelled(
            "disable-sliding-window-modelled",
            f"disable_sliding_window is not modelled for the windows of {model.architecture_name}",
        )


def windowless(model: Model) -> Model:
    """The model with its windows taken out, for a class that takes them from the configuration's one key; any other
    comes back as it is. One window of several sizes is not such a model."""
    sizes = {cls.window for cls in model.classes if cls.window is not None}
    if len(sizes) != 1 or not model.architecture.window_from_config:
        return model
    classes = tuple(
        cls if cls.window is None else msgspec.structs.replace(cls, node=_full(cls.attention)) for cls in model.classes
    )
    return msgspec.structs.replace(model, classes=classes, disabled_window=sizes.pop())


def _full(node: Attention) -> Attention:
    return msgspec.structs.replace(node, window=None, kind="gqa" if node.kind == "swa" else node.kind)
