"""Layers that keep no keys and values of their own and read those of the last layer of their type that does.

Source: 0.31.0, model_executor/models/gemma3n.py, gemma4.py (the attention classes).
"""

from __future__ import annotations

import msgspec

from rulespack.derive.blocks import all_reduce, gemm, projected_attention
from rulespack.derive.config import Config
from rulespack.derive.layers import Layer
from rulespack.graph.model import Attention, Cache
from rulespack.graph.vocabulary import DTYPE_BITS


def first_reader(config: Config, types: tuple[str, ...], default: int) -> int:
    """The first layer that reads another's cache, the number of layers where none does.

    ``default`` is how many the class supplies. Raises InvalidConfig where a type has no layer before the readers.
    """
    text, key = config.text, "num_kv_shared_layers"
    shared = text.integer(key, minimum=0, default=default)
    if shared >= config.layers:
        text.refuse(key, f"is {shared} of {config.layers} layers; at least one keeps its own")
    first = config.layers - shared
    lacking = set(types[first:]) - set(types[:first])
    if lacking:
        text.refuse(key, f"leaves no layer of type {sorted(lacking)[0]} whose cache the last {shared} could read")
    return first


def reading(config: Config, node: Attention, *, owned: bool) -> Attention:
    """The node with its cache named by type, so that a reader finds the last owner of its own type."""
    entry = node.n_kv * (node.d_h + (node.d_v or node.d_h)) * DTYPE_BITS[config.dtype] // 8
    if node.window is None:
        cache = Cache(name="kv", kind="kv", owned=owned, bytes_per_entry=entry)
    else:
        cache = Cache(name="window", kind="window", owned=owned, bytes_per_entry=entry, window=node.window)
    return msgspec.structs.replace(node, caches=(cache,))


def shared_attention(layer: Layer, config: Config, module: str, node: Attention) -> None:
    """Attention as usual where the layer owns its cache; a reader projects queries alone."""
    if node.caches is None or node.caches[0].owned:
        projected_attention(layer, config, module, node)
        return
    form, hidden, inner = config.weights.of_linear, config.hidden_size, node.n_q * node.d_h
    layer.add(gemm(config, "q_proj", inner, hidden, "column", form(f"{module}.q_proj")))
    layer.add(node)
    layer.add(gemm(config, "o_proj", hidden, inner, "row", form(f"{module}.o_proj")))
    layer.add(all_reduce("attn_out"))
