"""Which tensors of a checkpoint make which of a network, by Transformers' own mapping (`conversion_mapping`).

Releases go by other names than networks, and hold routed experts one by one: Transformers knows both, family by family.
Plain and quantised folders are read by this one mapping; a quantised matrix goes by the name of the plain tensor that
it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

# Of models that see images, too, and that Transformers has but the language model of.
_NESTED = {r"^language_model\.": ""}
_STACKING = ((MergeModulelist,), (MergeModulelist, Concatenate))
_NUMBER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Source:
    """The stored tensors that make one of a network, in the order of their numbers, by pattern of their names.

    Without a `converter` it is one tensor, as it is.
    """

    target: str
    converter: WeightConverter | None = None
    stored: dict[str, list[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All stored tensors."""
        return [name for names in self.stored.values() for name in names]

    @property
    def stacks_experts(self) -> bool:
        """Whether each of the stored tensors is a matrix of one expert, and all that is done is to stack them."""
        found = () if self.converter is None else tuple(type(operation) for operation in self.converter.operations)
        return found in _STACKING

    def by_expert(self) -> list[dict[int, str]]:
        """The names of matrices by the number of their expert: one mapping, of gate and up two."""
        patterns = [] if self.converter is None else self.converter.source_patterns
        return [{_expert_in(name): name for name in self.stored.get(pattern, [])} for pattern in patterns]

    def make(self, network: PreTrainedModel, read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """The tensors of the network by name, of those that `read` gives; on `meta` their shapes."""
        if self.converter is None:
            return {self.target: read(self.names[0])}
        converter: Any = deepcopy(self.converter)
        for pattern, names in self.stored.items():
            converter.collected_tensors[pattern] = [read(name) for name in names]
        made = converter.convert(self.target, model=network, config=network.config)
        return {name: one[0] if isinstance(one, list) else one for name, one in made.items()}


def _expert_in(name: str) -> int:
    """The last number in a name: that before it is the layer's."""
    return int(_NUMBER.findall(name)[-1])


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """`sources` by names of the network's tensors; `unknown` are stored names that it has no place for.

    What Transformers leaves out by the family's word, such as layers that predict further tokens, is neither.
    """

    sources: Mapping[str, Source]
    unknown: tuple[str, ...]

    @classmethod
    def of(cls, network: PreTrainedModel, stored: Iterable[str]) -> CheckpointNames:
        """Those of a checkpoint with these tensors."""
        mapping = get_model_conversion_mapping(network, key_mapping=_NESTED)
        renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
        converters = [one for one in mapping if isinstance(one, WeightConverter)]
        by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
        held, prefix = network.state_dict(keep_vars=True), network.base_model_prefix
        sources, others = dict[str, Source](), list[tuple[str, str]]()
        for name in sorted(stored, key=dot_natural_key):
            target, pattern = rename_source_key(name, renamings, converters, prefix, held)
            if target not in held and name in held:
                target, pattern = name, None
            converter = None if pattern is None else by_pattern[pattern]
            source = sources.get(target) or Source(target, converter)
            if target not in held or source.converter is not converter or (source.stored and converter is None):
                others.append((name, target))
                continue
            sources[target] = source
            source.stored.setdefault(pattern or name, []).append(name)
            if converter is not None:
                first, *others_made = converter.target_patterns
                for also in others_made:
                    sources.setdefault(target.replace(first, also), source)
        ignored = network._keys_to_ignore_on_load_unexpected or ()
        unknown = tuple(name for name, target in others if not any(re.search(one, target) for one in ignored))
        return cls(sources, unknown)
