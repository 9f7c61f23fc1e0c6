"""Which KV connector runs: the one stated, the one an offloading size stands for, or the parts of a MultiConnector.

Source: ``vllm/config/kv_transfer.py``, ``vllm/config/vllm.py: VllmConfig._post_init_kv_transfer_config``,
``vllm/distributed/kv_transfer/kv_connector/factory.py``, ``.../v1/multi_connector.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rulespack.errors import Refused, engine_refuses, meant, not_modelled
from vllm_0_29.environment import SIMPLE_OFFLOAD, switch

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules

FACTORY: Final = "vllm/distributed/kv_transfer/kv_connector/factory.py: KVConnectorFactory.get_connector_class"
CONFIG: Final = "vllm/config/kv_transfer.py: KVTransferConfig"
MULTI_SOURCE: Final = "vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py: MultiConnector"

MULTI: Final = "MultiConnector"
NIXL: Final = "NixlConnector"
CHILDREN: Final = "connectors"
ROLES: Final = ("kv_producer", "kv_consumer", "kv_both")
#: The connector an offloading backend stands for.
OFFLOADING: Final = {"native": "OffloadingConnector", "lmcache": "LMCacheMPConnector"}
SIMPLE_NATIVE: Final = "SimpleCPUOffloadConnector"

#: Keys of a transfer configuration.
KEYS: Final = (
    "kv_connector",
    "engine_id",
    "kv_buffer_device",
    "kv_buffer_size",
    "kv_role",
    "kv_rank",
    "kv_parallel_size",
    "kv_ip",
    "kv_port",
    "kv_connector_extra_config",
    "kv_connector_module_path",
    "enable_permute_local_kv",
    "kv_load_failure_policy",
)


class Transfer(msgspec.Struct, frozen=True):
    """The connector that runs: what it is called, whether all its parts keep the hybrid manager, and the layouts they
    prefer for this model, each once."""

    name: str
    hybrid: bool
    layouts: tuple[str, ...]


def stated(deployment: Deployment) -> bool:
    """Whether the deployment transfers its cache anywhere."""
    return deployment.kv_transfer_config is not None or deployment.kv_offloading_size is not None


def transfer(rules: Rules, model: Model, deployment: Deployment) -> Transfer | None:
    """The connector that runs, None without one; :func:`check_transfer` goes before."""
    if not stated(deployment):
        return None
    config = running(deployment)
    parts = [rules.connectors[name] for name in _leaves(config)]
    wanted = dict.fromkeys(part.layout for part in parts if not (model.mla and part.layout_spares_mla))
    return Transfer(
        str(config["kv_connector"]),
        _keeps_hybrid(rules, config),
        tuple(layout for layout in wanted if layout is not None),
    )


def wanted_layout(rules: Rules, model: Model, deployment: Deployment) -> str | None:
    """The layout the connector prefers. Refused by the engine where its parts prefer two."""
    used = transfer(rules, model, deployment)
    if used is None:
        return None
    if len(used.layouts) > 1:
        raise engine_refuses(
            "connector-parts-share-layout",
            "ValueError",
            "groups",
            f"the parts of {used.name} prefer several layouts: {', '.join(used.layouts)}",
            f"{MULTI_SOURCE}.get_required_kvcache_layout",
        )
    return next(iter(used.layouts), None)


def check_transfer(rules: Rules, model: Model, deployment: Deployment) -> None:
    """What of a connector the release refuses while it reads the arguments, or later for want of a look at it."""
    if not stated(deployment):
        return
    given = deployment.kv_transfer_config
    if given is not None:
        _check_config(rules, given)
        if deployment.kv_offloading_size is not None and given.get("kv_connector") is not None:
            _check_known(rules, model, deployment, given)  # the offloading connector replaces it after it was looked up
    config = running(deployment)
    _check_known(rules, model, deployment, config)
    if has_nixl(config):
        rules.check_nixl(model, deployment)


def running(deployment: Deployment) -> Mapping[str, Any]:
    """The transfer configuration, once the offloading size has named its connector."""
    given = deployment.kv_transfer_config or {}
    if deployment.kv_offloading_size is None:
        return given
    backend = deployment.kv_offloading_backend or "native"
    name = OFFLOADING[backend]
    if backend == "native" and switch(deployment, SIMPLE_OFFLOAD):
        name = SIMPLE_NATIVE
    return {**given, "kv_connector": name, "kv_role": "kv_both"}


def _parts(config: Mapping[str, Any]) -> list[Any]:
    """The configurations of a MultiConnector's parts."""
    return list((config.get("kv_connector_extra_config") or {}).get(CHILDREN) or ())


def _leaves(config: Mapping[str, Any]) -> Iterator[str]:
    if config["kv_connector"] != MULTI:
        yield str(config["kv_connector"])
        return
    for part in _parts(config):
        yield from _leaves(part)


def _keeps_hybrid(rules: Rules, config: Mapping[str, Any]) -> bool:
    """Whether a connector, and every part of one that has any, keeps the hybrid manager."""
    if config["kv_connector"] != MULTI:
        return rules.connectors[config["kv_connector"]].hybrid
    parts = _parts(config)
    return bool(parts) and all(_keeps_hybrid(rules, part) for part in parts)


def has_nixl(config: Mapping[str, Any]) -> bool:
    """``KVTransferConfig.has_connector``: by that very name, at the top or one step below a MultiConnector."""
    name = config["kv_connector"]
    return name == NIXL or (name == MULTI and any(part["kv_connector"] == NIXL for part in _parts(config)))


def invalid(rule: str, reason: str, source: str = CONFIG) -> Refused:
    """A refusal of the release's own reading of ``kv_transfer_config``."""
    return engine_refuses(rule, "ValidationError", "config", reason, source)


def _check_config(rules: Rules, config: Mapping[str, Any]) -> None:
    """Refused by the engine: a key, a role or a lack of one that no transfer configuration may have."""
    for key in config:
        if key not in KEYS:
            raise invalid(
                "connector-key-known",
                f"vLLM {rules.release} has no kv_transfer_config.{key}{meant(key, KEYS)}",
            )
    name, role = config.get("kv_connector"), config.get("kv_role")
    extra = config.get("kv_connector_extra_config", {})
    if name is not None and not isinstance(name, str):
        raise invalid("connector-value", f"kv_connector {name!r} is no name")
    if not isinstance(extra, Mapping):
        raise invalid("connector-value", f"kv_connector_extra_config {extra!r} is no mapping")
    if role is not None and role not in ROLES:
        raise invalid("connector-role-accepted", f"kv_role {role!r} is none of {', '.join(ROLES)}")
    if name is not None and role is None:
        raise invalid("connector-role-stated", f"the KV connector {name} needs a kv_role")


def _check_known(rules: Rules, model: Model, deployment: Deployment, config: Mapping[str, Any]) -> None:
    """The connector, and each part of one, exists.

    The release looks while it decides on the hybrid manager, unless that was stated, and on CUDA graphs, unless they
    are off or no role is stated; otherwise when the layout is chosen, unless the environment states that.
    """
    name = config.get("kv_connector")
    manager_decided = deployment.disable_hybrid_kv_cache_manager is not None
    if name is None:
        if not manager_decided:
            raise invalid("connector-named", "kv_transfer_config names no kv_connector", FACTORY)
        _check_seen(deployment)
        raise engine_refuses(
            "connector-named", "ValueError", "groups", "kv_transfer_config names no kv_connector", FACTORY
        )
    if "kv_connector_module_path" in config:
        raise not_modelled("connector-modelled", f"the KV connector {name} of your own module is not modelled")
    if name in rules.unmodelled_connectors:
        if not any(cls.cache.kind == "index" for cls in model.classes) and not model.sparse:
            raise invalid(
                "connector-needs-sparse-attention",
                f"the KV connector {name} serves latent attention to chosen tokens alone",
                "vllm/config/vllm.py: VllmConfig.__post_init__",
            )
        raise not_modelled("connector-modelled", f"the KV connector {name} keeps caches of its own: not modelled")
    if name == MULTI:
        _check_parts(rules, model, deployment, config)
    elif name not in rules.connectors:
        if manager_decided and deployment.enforce_eager:
            raise not_modelled(
                "connector-modelled",
                f"{name} is no KV connector of vLLM {rules.release}, and how far it comes without CUDA graphs is not "
                "modelled",
            )
        known = (*rules.connectors, MULTI)
        raise invalid(
            "connector-known",
            f"{name} is no KV connector of vLLM {rules.release}; there are: {', '.join(known)}{meant(name, known)}",
            FACTORY,
        )


def _check_parts(rules: Rules, model: Model, deployment: Deployment, config: Mapping[str, Any]) -> None:
    """Every part of a MultiConnector is a configuration of its own; without a list of them the release crashes."""
    extra = config.get("kv_connector_extra_config") or {}
    if extra.get(CHILDREN) is None:
        _check_seen(deployment)
        raise engine_refuses(
            "connector-has-parts",
            "AssertionError",
            "groups",
            f"a {MULTI} needs kv_connector_extra_config.{CHILDREN}, a list of its parts",
            f"{MULTI_SOURCE}._get_connector_classes_and_configs",
        )
    if not isinstance(extra[CHILDREN], list):
        raise not_modelled("connector-modelled", f"{CHILDREN} of a {MULTI} that are no list are not modelled")
    for part in _parts(config):
        if not isinstance(part, Mapping) or "engine_id" in part:
            raise not_modelled(
                "connector-modelled",
                f"a part of {MULTI} that is no configuration, or states its engine_id, is not modelled",
            )
        _check_config(rules, part)
        if part.get("kv_connector") is None:
            raise invalid("connector-named", f"a part of {MULTI} names no kv_connector", FACTORY)
        if deployment.disable_hybrid_kv_cache_manager is not None and deployment.enforce_eager:
            if part["kv_connector"] not in rules.connectors:
                raise not_modelled("connector-modelled", "such a part without CUDA graphs is not modelled")
        _check_known(rules, model, deployment, part)


def _check_seen(deployment: Deployment) -> None:
    """Not modelled: a layout the environment states, which leaves the mistake to the workers."""
    if "VLLM_KV_CACHE_LAYOUT" in deployment.env:
        raise not_modelled(
            "connector-modelled", "a KV connector without a name or parts beside a stated layout is not modelled"
        )


def check_nixl(model: Model, deployment: Deployment) -> None:
    """Refused by the engine: NIXL over ranks that share the prefill, or the cache in any other way than whole."""
    dcp = deployment.decode_context_parallel_size
    if deployment.prefill_context_parallel_size > 1:
        raise invalid(
            "nixl-pcp", "NIXL takes no prefill context parallelism", "vllm/config/vllm.py: VllmConfig.__post_init__"
        )
    if dcp > 1 and (not model.mla or dcp != deployment.tensor_parallel_size or model.hybrid):
        raise invalid(
            "nixl-dcp",
            "NIXL takes decode context parallelism only over all tensor-parallel ranks, and a latent cache alone",
            "vllm/config/vllm.py: VllmConfig.__post_init__",
        )
