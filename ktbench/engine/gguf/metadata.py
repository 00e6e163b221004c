"""How the facts of a Hugging Face configuration are written as GGUF metadata, and read from it.

Configurations are complete, as Transformers writes them. Fields are named without the architecture that begins their
keys in a file: `block_count` is `qwen3moe.block_count` there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Config = Mapping[str, Any]
Value = int | float | bool | str
Fields = Mapping[str, Any]


class Entry(Protocol):
    """Some facts of a configuration and the fields that carry them."""

    def differs(self, config: Config) -> str:
        """Why llama.cpp would compute something else than the model does; empty where it computes the same."""
        ...

    def write(self, config: Config) -> dict[str, Value]:
        """Fields of a configuration."""
        ...

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """Facts of a file with these fields and names of tensors."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A number, or a yes or no, that is a field of its own. Reading gives it under the first of `keys`.

    `absent` is what a file without the field means (None: it has to have it), `none` what is written where the
    configuration has none (None: no field).
    """

    keys: tuple[str, ...]
    field: str
    kind: Literal["int", "float", "bool"] = "int"
    absent: Value | None = None
    none: Value | None = None

    def differs(self, config: Config) -> str:
        """Never: the field carries it."""
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        value = next((config[key] for key in self.keys if config.get(key) is not None), self.none)
        return {} if value is None else {self.field: _KINDS[self.kind](value)}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        value = fields[self.field] if self.absent is None else fields.get(self.field, self.absent)
        read = short(value) if self.kind == "float" else _KINDS[self.kind](value)
        return {self.keys[0]: None if read == self.none else read}


_KINDS: Mapping[str, type[int | float | bool]] = {"int": int, "float": float, "bool": bool}


def short(value: float) -> float:
    """The shortest decimal number that a float32 stands for: 1e-06 for 9.99999997e-07."""
    return float(f"{float(value):.7g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """A fact that llama.cpp takes for granted in this architecture, so no field carries it."""

    key: str
    value: Any

    def differs(self, config: Config) -> str:
        """Where the configuration says otherwise."""
        said = config.get(self.key)
        is_same = said is None or said == self.value
        return "" if is_same else f"{self.key}={said}, llama.cpp knows {self.value}"

    def write(self, config: Config) -> dict[str, Value]:
        """Nothing."""
        return {}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        return {self.key: self.value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A yes or no that a file answers by holding a tensor, or by not holding it where `inverted`."""

    key: str
    tensor: str
    inverted: bool = False

    def differs(self, config: Config) -> str:
        """Never: llama.cpp looks for the tensor."""
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """Nothing."""
        return {}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        return {self.key: (self.tensor in tensors) != self.inverted}


class Depth:
    """Layers. A file may count those that predict further tokens, which no network of Transformers has."""

    def differs(self, config: Config) -> str:
        """Never."""
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        return {"block_count": int(config["num_hidden_layers"])}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        return {"num_hidden_layers": int(fields["block_count"]) - int(fields.get("nextn_predict_layers", 0))}


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadWidth:
    """Width of attention heads; where `whole`, heads have to be as wide together as the hidden state."""

    whole: bool = False

    def differs(self, config: Config) -> str:
        """Heads that llama.cpp would take for wider or narrower ones."""
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        if not self.whole or head_width(config) * heads == hidden:
            return ""
        return f"head_dim={head_width(config)}, llama.cpp knows hidden_size / num_attention_heads = {hidden // heads}"

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        width = config.get("head_dim")
        return {} if width is None else {"attention.key_length": int(width), "attention.value_length": int(width)}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        width = fields.get("attention.key_length")
        return {} if width is None else {"head_dim": int(width)}


def head_width(config: Config) -> int:
    """Width of one attention head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


class Window:
    """Layers that look at a window and layers that look at everything, taking turns."""

    def differs(self, config: Config) -> str:
        """Layers in another order."""
        kinds = config.get("layer_types")
        is_same = kinds is None or list(kinds) == _in_turns(len(kinds))
        return "" if is_same else "layer_types in another order than sliding_attention, full_attention in turns"

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        return {"attention.sliding_window": int(config["sliding_window"])}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        kinds = _in_turns(int(fields["block_count"]))
        return {"sliding_window": int(fields["attention.sliding_window"]), "layer_types": kinds}


def _in_turns(layers: int) -> list[str]:
    return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
