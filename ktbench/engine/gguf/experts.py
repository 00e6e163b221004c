"""Routed experts of one decoder layer, read one after the other from a GGUF file."""

from __future__ import annotations

from torch import Tensor, nn

from ktbench.engine.forms import ExpertBlocks, ExpertMatrices, ExpertsForm, read_form
from ktbench.engine.gguf.names import expert_names
from ktbench.engine.gguf.weights import MappedWeights
from ktbench.spec.run_spec import Precision

_MATRICES = ("gate", "up", "down")


class StoredExperts:
    """The experts of one experts module, which may be on `meta`.

    Raises ValueError for a file that lacks one of their tensors, or has it in another shape.
    """

    def __init__(self, module: nn.Module, name: str, weights: MappedWeights) -> None:
        self.form, self._weights = read_form(module), weights
        shapes = _shapes(self.form)
        self.names = {field: tensor for field, tensor in expert_names(name).items() if field in shapes}
        for field, tensor in self.names.items():
            weights.require(tensor, shapes[field])

    def matrices(self, i: int) -> ExpertMatrices:
        """Expert `i` in bf16."""
        gate, up, down = (self._weights.read(self.names[field], i) for field in _MATRICES)
        return ExpertMatrices(gate=gate, up=up, down=down, glu=self.form.glu, **self._biases(i))

    def blocks(self, i: int) -> ExpertBlocks:
        """Expert `i` as it lies in the file, for matrices that `are_in` a precision."""
        gate, up, down = (self._weights.rows(self.names[field])[i] for field in _MATRICES)
        return ExpertBlocks(gate=gate, up=up, down=down, **self._biases(i))

    def _biases(self, i: int) -> dict[str, Tensor]:
        return {field: self._weights.read(name, i) for field, name in self.names.items() if field not in _MATRICES}

    def are_in(self, precision: Precision | None) -> bool:
        """Whether all matrices are blocks of `precision`."""
        return all(self._weights.is_in(self.names[field], precision) for field in _MATRICES)

    def fill(self, module: nn.Module) -> None:
        """Give memory and content to the module."""
        module.to_empty(device="cpu", recurse=False)
        for i in range(self.form.experts):
            stored, held = self.matrices(i), self.form.matrices(module, i)
            for field in self.names:
                getattr(held, field).data.copy_(getattr(stored, field))


def _shapes(form: ExpertsForm) -> dict[str, tuple[int, ...]]:
    """What each tensor of the file has to be, by field of `ExpertMatrices`."""
    inner, outer = (form.experts, form.ffn), (form.experts, form.hidden)
    shapes = {"gate": (*inner, form.hidden), "up": (*inner, form.hidden), "down": (*outer, form.ffn)}
    return shapes | ({"gate_bias": inner, "up_bias": inner, "down_bias": outer} if form.biases else {})
