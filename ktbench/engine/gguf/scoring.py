"""How routers choose experts, as metadata: groups, and the function that makes scores."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ktbench.engine.gguf.metadata import Config, Fields, Value

_SOFTMAX, _SIGMOID = 1, 2  # LLAMA_EXPERT_GATING_FUNC_TYPE


class Groups:
    """Expert groups of which a token selects some. A single group, or all of them, selects nothing and is no field."""

    def differs(self, config: Config) -> str:
        """Never: a group is scored by its two best experts in both."""
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        groups, used = config.get("n_group") or 1, config.get("topk_group") or 1
        return {"expert_group_count": groups, "expert_group_used_count": used} if used < groups else {}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        return {
            "n_group": int(fields.get("expert_group_count", 1)) or 1,
            "topk_group": int(fields.get("expert_group_used_count", 1)) or 1,
        }


class GreedyGroups(Groups):
    """Groups that are scored by their best expert, for which llama.cpp has no name."""

    def differs(self, config: Config) -> str:
        """Where groups are limited."""
        if config.get("topk_method") != "group_limited_greedy" or not super().write(config):
            return ""
        return "topk_method=group_limited_greedy, llama.cpp scores a group by its two best experts, the model by one"

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`. What llama.cpp does with groups is not what they mean, but what they mean is this."""
        facts = super().read(fields, tensors)
        return facts | {"topk_method": "greedy" if facts["n_group"] == 1 else "group_limited_greedy"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gating:
    """The function that makes scores of what a router says."""

    sigmoid: bool = False

    def differs(self, config: Config) -> str:
        """Never: a family has one."""
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        return {"expert_gating_func": _SIGMOID if self.sigmoid else _SOFTMAX}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """Nothing: the family says it."""
        return {}


def is_sigmoid(fields: Fields) -> bool:
    """Whether scores are sigmoids; files that do not say so are older than such models."""
    return int(fields.get("expert_gating_func", _SOFTMAX)) == _SIGMOID
