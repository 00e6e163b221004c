"""Dense operators of the lean device role on CPU cores: linear layers on packed weights and root-mean-square norms.

Letters: T tokens, K inputs, N outputs of a linear layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ktbench._kernels import DecodeAttention, Linear, OpenMPTeam, PackedMatrix, rms_norm
from ktbench.engine.decode.lazy import resolve_lazy
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.forms import LinearBlocks, LinearRows, as_numpy
from ktbench.engine.inject.forms import read_norm
from ktbench.engine.loading.packed_folder import PackedFiles
from ktbench.spec.weights import FORMATS, STRIP_ROWS, Precision


class DenseOperators:
    """The dense operators of a network, and the threads that they share with PyTorch; `lean` switches them all.

    Linear layers are packed in `precision` unless a rule names another. `blocks_of` is there for a file that has blocks
    in `precision`: what it does not give stays in bf16. Layers run one after the other, so that all attend with the
    work memory of one `attention`.
    """

    def __init__(
        self,
        threads: int,
        precision: Precision,
        recorder: CallRecorder,
        keeps_original: bool,
        blocks_of: LinearBlocks | None = None,
        files: PackedFiles | None = None,
    ) -> None:
        self.precision, self.recorder, self.keeps_original = precision, recorder, keeps_original
        self.blocks_of, self._files = blocks_of, files
        self.lean = not keeps_original
        self.team = OpenMPTeam(threads)
        self.attention = DecodeAttention(self.team)
        self._matrices: list[DenseMatrix] = []

    def matrix(self, modules: Sequence[nn.Linear], named: Precision | None = None) -> DenseMatrix:
        """The weights of layers that get the same input, packed one below the other, see `precision_of`."""
        precision = self.precision_of(modules, named)
        self._matrices.append(DenseMatrix(modules, self, self._packed(modules, precision)))
        return self._matrices[-1]

    def _packed(self, modules: Sequence[nn.Linear], precision: Precision) -> PackedMatrix:
        """Those that the `files` of the host have are mapped, and the weights of `modules` are not asked for them."""
        if self._files is None:
            return self._pack(modules, precision)
        name = f"matrix-{len(self._matrices):04}"
        return self._files.take(name, PackedMatrix, lambda: self._pack(modules, precision))

    def _pack(self, modules: Sequence[nn.Linear], precision: Precision) -> PackedMatrix:
        rows, columns = sum(module.out_features for module in modules), modules[0].in_features
        packed, row = PackedMatrix(rows, columns, precision), 0
        for module in modules:
            self._write(packed, module, row)
            row += module.out_features
        return packed

    def _write(self, packed: PackedMatrix, module: nn.Linear, row: int) -> None:
        stored = self._stored_rows(module)
        if stored is None or packed.precision != stored.precision:
            packed.write(as_numpy(module.weight), row, self.team)
        else:
            packed.write_blocks(stored.read(), row, self.team)

    def _stored_rows(self, module: nn.Module) -> LinearRows | None:
        return None if self.blocks_of is None else self.blocks_of(module)

    def precision_of(self, modules: Sequence[nn.Linear], named: Precision | None = None) -> Precision:
        """What layers of one matrix are packed in: `named`, else `precision`, or what a file has all of them in.

        Rows that are no whole number of blocks stay bf16, as llama.cpp leaves them.
        """
        precision = named or self.precision
        row = FORMATS[precision]
        if row.whole_blocks and any(module.in_features % row.group for module in modules):
            return "bf16"
        if named or self.blocks_of is None:
            return precision
        found = {stored.precision if (stored := self._stored_rows(module)) else "bf16" for module in modules}
        return found.pop() if len(found) == 1 else "bf16"

    def resize(self, threads: int) -> None:
        """Run on so many threads from now on."""
        if threads != self.team.threads:
            self.team = OpenMPTeam(threads)
            self.attention = DecodeAttention(self.team)
            for matrix in self._matrices:
                matrix.move_to(self.team)

    def counters(self) -> Counter[str]:
        """Cumulative counts, summed over the matrices."""
        return Counter(linear_calls=sum(matrix.calls for matrix in self._matrices))

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return sum(matrix.packed.nbytes for matrix in self._matrices)

    @property
    def params(self) -> int:
        """Weights that are packed."""
        return sum(matrix.packed.rows * matrix.packed.columns for matrix in self._matrices)


class DenseMatrix:
    """Packed weights [N, K] of one or several linear layers, with their biases [N] where they have any."""

    def __init__(self, modules: Sequence[nn.Linear], host: DenseOperators, packed: PackedMatrix) -> None:
        self.host, self.packed, self.calls = host, packed, 0
        biases = [module.bias.detach().float() for module in modules if module.bias is not None]
        self._bias = torch.cat(biases).numpy() if biases else None
        self._kernel = Linear(self.packed, host.team, self._bias)

    def move_to(self, team: OpenMPTeam) -> None:
        """Run on other threads from now on."""
        self._kernel = Linear(self.packed, team, self._bias)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., N] bf16 of `x` [..., K] bf16."""
        rows = x.reshape(-1, self.packed.columns).contiguous()
        out = rows.new_empty(*x.shape[:-1], self.packed.rows)
        self.host.recorder.do(partial(self._run, as_numpy(rows), as_numpy(out.view(-1, self.packed.rows))), rows, out)
        return out

    def _run(self, rows: object, out: object) -> None:
        self._kernel.forward(rows, out)  # type: ignore[arg-type]
        self.calls += 1


class FusedProjection:
    """Linear layers of one input in one product, computed at the first call for any of them."""

    def __init__(self, matrix: DenseMatrix, widths: Sequence[int]) -> None:
        self.matrix, self._widths = matrix, widths
        self._input: Tensor | None = None
        self._pending: dict[int, Tensor] = {}

    def __call__(self, number: int, x: Tensor) -> Tensor:
        """The output of one of them, a view of the memory of all."""
        if x is not self._input or number not in self._pending:
            self._input = x
            self._pending = dict(enumerate(torch.split(self.matrix(x), list(self._widths), dim=-1)))
        output = self._pending.pop(number)
        if not self._pending:
            self._input = None
        return output


class PackedLinear(nn.Module):
    """A linear layer [N, K] on packed weights, or as it was where the device role is not lean."""

    def __init__(self, module: nn.Linear, projection: FusedProjection, number: int) -> None:
        super().__init__()
        self.projection, self._number = projection, number
        self.in_features, self.out_features = module.in_features, module.out_features
        self.original = module if projection.matrix.host.keeps_original else None
        # Some models ask a layer for the type of its weight.
        self.weight = nn.Parameter(torch.empty_like(module.weight, device="meta"), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., N] bf16 of `x` [..., K] bf16. Raises ValueError where the original is needed and was not kept."""
        if self.projection.matrix.host.lean:
            return self.projection(self._number, resolve_lazy(x))
        if self.original is None:
            raise ValueError("original weights of the linear layers were not kept at load")
        result: Tensor = self.original(x)
        return result


def pack_linears(
    modules: Sequence[nn.Linear], host: DenseOperators, named: Sequence[Precision | None]
) -> list[PackedLinear]:
    """Operators for linear layers of one input, in the order given, which share a matrix where their rows allow.

    `named` has the format that a rule names for each, None where none does.
    """
    widths, pairs = [module.out_features for module in modules], list(zip(modules, named, strict=True))
    kinds = {(module.in_features, module.bias is None, host.precision_of([module], own)) for module, own in pairs}
    if len(modules) > 1 and not (len(kinds) == 1 and all(width % STRIP_ROWS == 0 for width in widths[:-1])):
        return [packed for module, own in pairs for packed in pack_linears([module], host, [own])]
    *_, precision = kinds.pop()
    projection = FusedProjection(host.matrix(modules, precision), widths)
    return [PackedLinear(module, projection, number) for number, module in enumerate(modules)]


class FusedNorm(nn.Module):
    """x · rsqrt(mean(x²) + eps) · weight in one pass, rounded where Transformers' own norm rounds (Zhang 2019)."""

    def __init__(self, module: nn.Module, host: DenseOperators) -> None:
        super().__init__()
        self.host, self.original = host, module
        self.form = read_norm(module)
        self.weight = module.get_parameter("weight")

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] bf16 of `x` [..., K] bf16."""
        if not self.host.lean:
            result: Tensor = self.original(x)
            return result
        x, form = resolve_lazy(x), self.form
        rows = x.reshape(-1, x.shape[-1])
        out = x.new_empty(x.shape)
        call = partial(
            rms_norm,
            as_numpy(rows),
            as_numpy(self.weight),
            as_numpy(out.view(rows.shape)),
            form.epsilon,
            offset=form.offset,
        )
        self.host.recorder.do(call if len(rows) == 1 else partial(call, team=self.host.team), rows, out)
        return out
