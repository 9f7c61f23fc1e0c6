"""``disable_sliding_window``: a model whose window layers attend to everything, no longer than its window was.

Source: ``vllm/config/model.py: ModelConfig.__post_init__`` takes the window out of the configuration once the length is
settled, ``_get_and_verify_max_len`` bounds the length by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import not_modelled

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.graph.model import Attention
    from vllm_0_29.model import CacheClass, Draft, Model
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


#: Methods whose draft classes read a window layer by layer.
WINDOWED_BY_LAYER: Final = frozenset({"dflash", "dspark"})


def draft_windows(model: Model, draft: Draft) -> tuple[CacheClass, ...]:
    """The draft's classes with the windows their layers get.

    A layer that is given none of its own takes the one the target's configuration states for all of its layers, and
    none where it states none: also in a draft whose own configuration has one for all
    (``vllm/model_executor/layers/attention/attention.py: Attention.__init__``).
    """
    if not draft.separate:
        return draft.classes
    stated = _everywhere(model.classes)
    by_layer = draft.method in WINDOWED_BY_LAYER or len({cls.window for cls in _attending(draft.classes)}) > 1
    return tuple(
        cls if cls.layer_class != "Attention" or (by_layer and cls.window is not None) else _windowed(cls, stated)
        for cls in draft.classes
    )


def _attending(classes: Sequence[CacheClass]) -> list[CacheClass]:
    return [cls for cls in classes if cls.layer_class == "Attention"]


def _everywhere(classes: Sequence[CacheClass]) -> int | None:
    """The window of every attention layer; None where they differ, or one has none."""
    windows = {cls.window for cls in _attending(classes)}
    return windows.pop() if len(windows) == 1 else None


def _windowed(cls: CacheClass, window: int | None) -> CacheClass:
    if cls.window == window:
        return cls
    node = _full(cls.attention)
    if window is not None:
        node = msgspec.structs.replace(node, window=window, kind="swa" if node.kind == "gqa" else node.kind)
    return msgspec.structs.replace(cls, node=node)


def _full(node: Attention) -> Attention:
    return msgspec.structs.replace(node, window=None, kind="gqa" if node.kind == "swa" else node.kind)
