"""The table of families in docs/families.md. `python -m tests.engine.families.table` writes it anew."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

from ktbench.engine.forms import ExpertsForm, expert_positions, read_form
from tests.engine.families.zoo import ABSENT, FAMILIES, REFUSED, bare, installed, tiny

FILE = Path(__file__).parents[3] / "docs" / "families.md"

_HEAD = """\
# Families

Every family of Transformers that has an experts module, and what the engine makes of it. Written by
`python -m tests.engine.families.table`; `tests/engine/families` holds the engine to it with a tiny model of each family
and random weights, in prefill and in decode on a cache. *base* gives the logits of Transformers bit for bit, *+v*
within 5 % (bf16), *deferral* and skipping what their formula gives around Transformers' own modules.

`nox -s families` compares the same families through checkpoints as released: Transformers saves each under the names
of its release, in bf16 and in FP8, llama.cpp's converter makes a GGUF file of it, and what is loaded from there is
compared with Transformers. [Families as released](families_released.md) is the table that it writes.

Router and shared experts stay the family's own. Where a block norms or scales what its experts give, it does so with
the deferred part of the layer before, too.
"""
_RUN = ("family", "experts", "gate and up", "biases", "activation", "router", "shared", "dense layers")
_MARKS = ("base", "+v", "deferral")
_ROUTERS = ("router", "gate")


def table() -> str:
    """The whole file."""
    run = [_row(name) for name in FAMILIES]
    refused = [(f"`{name}`", _message(name)) for name in REFUSED]
    folders = installed()
    absent = [(f"`{folders[name]}`", f"`{name}`", why) for name, why in ABSENT.items()]
    parts = [
        _HEAD,
        "## Families that run\n",
        _lines((*_RUN, *_MARKS), run),
        "## Families whose experts do not fit\n\nThe engine refuses them with these words.\n",
        _lines(("family", "what differs"), refused),
        "## Experts of no causal language model of text alone\n",
        _lines(("folder", "experts", "what they are of"), absent),
    ]
    return "\n".join(parts)


def _lines(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _row(name: str) -> tuple[str, ...]:
    network, shape = bare(name), tiny(name).shape
    path, place = expert_positions(network)[0]
    module = network.get_submodule(path)
    block = network.get_submodule(path.rpartition(".")[0])
    layer = network.get_submodule(path.partition("layers.")[0] + f"layers.{place.layer}")
    form = read_form(module)
    return (
        f"`{name}`",
        f"`{type(module).__name__}`",
        _layout(form),
        "yes" if form.biases else "",
        _activation(form),
        _router(block),
        _shared(layer),
        "yes" if shape.dense_layers else "",
        *("yes" for _ in _MARKS),
    )


def _layout(form: ExpertsForm) -> str:
    turns = "in turns" if form.interleaved else "halves"
    return f"{turns}, transposed" if form.transposed else turns


def _activation(form: ExpertsForm) -> str:
    glu = form.glu
    gate = "GELU (tanh)" if glu.activation == "gelu_tanh" else "SiLU" if glu.alpha == 1 else f"SiLU ({glu.alpha:g} g)"
    offset = f", up + {glu.offset:g}" if glu.offset else ""
    return gate + offset + (f", clamped to {glu.limit:g}" if glu.limit is not None else "")


def _router(block: nn.Module) -> str:
    routers = (type(child).__name__ for name, child in block.named_children() if name in _ROUTERS)
    return f"`{next(routers)}`"


def _shared(layer: nn.Module) -> str:
    """Parts beside the routed experts of a layer: `shared` by name, or an MLP of the layer's own."""
    names = [name.rpartition(".")[2] for name, _ in layer.named_modules()]
    if any(name.startswith("shared_expert_gate") for name in names):
        return "gated"
    if any(name.startswith("shared") for name in names):
        return "plain"
    return "the layer's MLP" if "mlp" in names and "experts" in dict(layer.named_children()) else ""


def _message(name: str) -> str:
    network: PreTrainedModel = bare(name)
    try:
        expert_positions(network)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{name}: its experts fit")


if __name__ == "__main__":
    FILE.write_text(table(), encoding="utf-8")
