"""One vocabulary over the vendors' dialects: what every family reads, typed and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from rulespack.derive import mistral
from rulespack.derive.document import Document
from rulespack.derive.lengths import read_positions
from rulespack.derive.quantization import read_weights
from rulespack.derive.section import Origin, Section
from rulespack.derive.weights import Weights
from rulespack.graph.model import Positions

#: The spelling of dtypes in configurations, and ours. The engine computes a float32 checkpoint in a narrower one, and
#: reads nothing stated as float32 (0.31.0, config/model.py, _resolve_auto_dtype).
MODEL_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float": "fp32", "half": "fp16"}


class Served(msgspec.Struct, frozen=True):
    """What the configuration class of an architecture supplies where a file leaves a key out.

    A key that is null is not left out: there are as many key-value heads as query heads, which share the width.
    ``kv_heads`` None: as many as query heads. ``head_dim`` None: the width over the query heads. ``multimodal``: the
    class has encoders before the decoder, which the graph leaves out. ``lifts_quantization``: the class makes the text
    configuration's quantization the whole model's. ``divides_width``: heads share the width whatever ``head_dim`` says.
    ``attention_free``: there are no heads. ``head_dim_key`` and ``tie_key`` are how the class spells those two.
    ``layer_list``: the key whose list tells how many layers there are. ``max_positions``: the position limit where no
    key states a length; ``max_seq_len``: what the class adds under that name beside any other. ``with_vision``: the
    class the engine takes instead where the file configures a vision encoder. ``downcast``: what the engine computes a
    float32 checkpoint in. ``names``: our vocabulary in the words of a class that spells it otherwise.
    """

    kv_heads: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool = False
    multimodal: bool = False
    lifts_quantization: bool = False
    divides_width: bool = False
    attention_free: bool = False
    head_dim_key: str = "head_dim"
    tie_key: str = "tie_word_embeddings"
    layer_list: str | None = None
    max_positions: int | None = None
    max_seq_len: int | None = None
    with_vision: str | None = None
    downcast: str = "bf16"
    names: Mapping[str, str] = msgspec.field(default_factory=dict)


class Head(msgspec.Struct, frozen=True):
    """A file opened as far as its architecture: enough to find the family that serves it."""

    document: Document
    architecture: str
    root: Section
    text: Section
    reads: set[tuple[str, ...]]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What the families read. Counts and widths are plain numbers; ``text`` reaches a family's own keys.

    ``dtype`` is what the engine computes in, ``weights`` how the checkpoint stores each weight.
    """

    file: str
    format: str
    architecture: str
    model_type: str
    root: Section
    text: Section
    served: Served
    hidden_size: int
    vocab_size: int
    layers: int
    heads: int
    kv_heads: int
    tie_word_embeddings: bool
    dtype: str
    positions: Positions
    weights: Weights

    def head_dim(self) -> int:
        """Width of one head: as stated, else as the class supplies it, else the width over the query heads."""
        key = self.served.head_dim_key
        stated = self.text.optional_integer(key) if self.text.states(key) else self.served.head_dim
        if self.served.divides_width:
            if stated is not None and stated * self.heads != self.hidden_size:
                self.text.refuse("head_dim", f"is {stated}, and this class gives each of {self.heads} heads its share")
        elif stated is not None:
            return stated
        if self.hidden_size % self.heads:
            problem = f"is missing, and {self.heads} heads do not divide a width of {self.hidden_size}; state it"
            self.text.refuse("head_dim", problem)
        return self.hidden_size // self.heads


def open_config(document: Document) -> Head:
    """Find the model class a file is served with. Raises InvalidConfig where it names none."""
    file = str(document.path)
    reads: set[tuple[str, ...]] = set()
    if document.format == "mistral_params_json":
        section = Section(document.data, Origin(file, None, reads), names=mistral.NAMES)
        name = mistral.architecture(section, file)
        root = Section(document.data, Origin(file, name, reads), names=mistral.NAMES)
        return Head(document, name, root, root, reads)
    section = Section(document.data, Origin(file, None, reads))
    names = section.optional_strings("architectures")
    if not names:
        section.refuse("architectures", "names no model class; state the class the checkpoint is served with")
    root = Section(document.data, Origin(file, names[0], reads))
    return Head(document, names[0], root, root.optional_section("text_config") or root, reads)


def respelt(head: Head, served: Served) -> Head:
    """The file read in the words of the class that serves it, where those are not everybody's."""
    if not served.names:
        return head
    section = Section(
        head.document.data, Origin(str(head.document.path), head.architecture, head.reads), names=served.names
    )
    return msgspec.structs.replace(head, root=section, text=section)


def read_config(head: Head, served: Served) -> Config:
    """Read what every family needs. Raises InvalidConfig, naming the key, for what is missing, mistyped or absurd."""
    root, text = head.root, head.text
    native = head.document.format == "mistral_params_json"
    dtype = _dtype(root, text, served)
    heads, kv_heads = (0, 0) if served.attention_free else _heads(text, served)
    tied = served.tie_word_embeddings
    for owner in (text, root):
        tied = owner.boolean(served.tie_key, default=tied)
    if native:
        model_type = mistral.MODEL_TYPES[head.architecture]
    else:
        model_type = text.optional_string("model_type") or root.string("model_type")
    return Config(
        file=str(head.document.path),
        format=head.document.format,
        architecture=head.architecture,
        model_type=model_type,
        root=root,
        text=text,
        served=served,
        hidden_size=text.integer("hidden_size"),
        vocab_size=text.integer("vocab_size"),
        layers=_layers(text, served),
        heads=heads,
        kv_heads=kv_heads,
        tie_word_embeddings=tied,
        dtype=dtype,
        positions=mistral.read_positions(text)
        if native
        else read_positions(text, served.max_positions, served.max_seq_len),
        weights=mistral.read_weights(text, dtype)
        if native
        else read_weights(root, text, dtype, lifted=served.lifts_quantization),
    )


def _heads(text: Section, served: Served) -> tuple[int, int]:
    """Query and key-value heads."""
    heads = text.integer("num_attention_heads")
    key = "num_key_value_heads"
    kv_heads = (text.optional_integer(key) if text.states(key) else served.kv_heads) or heads
    if heads % kv_heads:
        text.refuse("num_key_value_heads", f"{kv_heads} key-value heads do not divide {heads} query heads")
    return heads, kv_heads


def _layers(text: Section, served: Served) -> int:
    """How many layers there are: as stated, else as many as the class's own list names."""
    if served.layer_list is not None and not text.has("num_hidden_layers"):
        listed = text.optional_strings(served.layer_list)
        if listed:
            return len(listed)
    return text.integer("num_hidden_layers")


def _dtype(root: Section, text: Section, served: Served) -> str:
    for owner in (root, text):
        for key in ("dtype", "torch_dtype"):
            stated = owner.optional_string(key)
            if stated is None:
                continue
            known = MODEL_DTYPES.get(stated.removeprefix("torch."))
            if known is None:
                owner.refuse(
                    key, f"{stated!r} is not a dtype the engine computes in; known are {', '.join(MODEL_DTYPES)}"
                )
            return served.downcast if known == "fp32" else known
    return served.downcast
