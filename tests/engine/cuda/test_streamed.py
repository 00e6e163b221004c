"""Layerwise prefill: a device unpacks experts as the host reads them, and gives what the host gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)

from ktbench import _kernels as kernels
from ktbench.engine.backend import ExpertsBackend
from ktbench.engine.cuda import streamed as module
from ktbench.engine.cuda.packed import PackedLayout
from ktbench.engine.cuda.streamed import ExpertStream, StreamedExperts, crossover, streaming_threshold
from ktbench.engine.forms import Biases, ExpertMatrices, Glu
from ktbench.engine.routing import Routing
from ktbench.spec.weights import DEVICE_UNPACKS, FORMATS
from tests.engine.cuda.fakes import no_pins

E, TOP_K = 5, 2
TOLERANCE = 0.02


class Packed(ExpertsBackend):
    """Experts packed as a host packs them, which counts the calls it gets."""

    def __init__(self, precision: str, hidden: int, ffn: int, *, biases: bool = False, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.packed = kernels.PackedExperts(E, hidden, ffn, precision, biases=biases)
        for expert in range(E):
            gate, up, down = (self._bits(draw, *shape) for shape in ((ffn, hidden), (ffn, hidden), (hidden, ffn)))
            sizes = {"gate_bias": ffn, "up_bias": ffn, "down_bias": hidden} if biases else {}
            own = {name: draw.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
            self.packed.write_expert(expert, gate, up, down, None, **own)
        self.memory, self.calls = torch.from_numpy(self.packed.memory().copy()), 0
        self.biases = biases

    @staticmethod
    def _bits(draw: np.random.Generator, rows: int, columns: int) -> Any:
        numbers = torch.from_numpy(draw.standard_normal((rows, columns)) / columns**0.5)
        return numbers.bfloat16().view(torch.uint16).numpy()

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        self.calls += 1
        output = torch.zeros(hidden.shape)
        for expert in range(E):
            token, place = (routing.ids == expert).nonzero(as_tuple=True)
            output.index_add_(
                0, token, self.matrices(expert)(hidden[token].float()) * routing.gates[token, place, None]
            )
        return output.to(hidden.dtype)

    def matrices(self, i: int) -> ExpertMatrices:
        gate, up, down = map(torch.from_numpy, self.packed.read_expert(i))
        biases = Biases(*map(torch.from_numpy, self.packed.read_biases(i))) if self.biases else None
        return ExpertMatrices(gate=gate, up=up, down=down, biases=biases)


class Here:
    """A side that copies at once."""

    def fork(self) -> None: ...

    def join(self) -> None: ...

    def copy(self, to: Tensor, source: Tensor) -> None:
        to.copy_(source)


def streamed(host: Packed, precision: Any) -> StreamedExperts:
    layout = PackedLayout(
        hidden=host.packed.hidden,
        ffn=host.packed.intermediate,
        precision=precision,
        down_precision=precision,
        biases=host.biases,
    )
    return StreamedExperts(host, Glu(), layout, ExpertStream(Here(), no_pins(), torch.device("cpu")))  # type: ignore[arg-type]


def call(hidden: int, tokens: int, seed: int = 1) -> tuple[Tensor, Routing]:
    """Some select one expert only."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=draw).bfloat16()
    ids = torch.rand(tokens, E, generator=draw).argsort(dim=1)[:, :TOP_K].clone()
    ids[::3, 1] = -1
    return x, Routing(ids=ids, gates=torch.rand(tokens, TOP_K, generator=draw))


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found.float() - truth.float()).norm() / truth.float().norm())


@given(
    precision=st.sampled_from(DEVICE_UNPACKS),
    hidden=st.integers(1, 12).map(lambda n: 32 * n),
    ffn=st.integers(1, 12).map(lambda n: 16 * n),
    biases=st.booleans(),
)
def test_experts_are_unpacked_as_the_host_reads_them(precision: Any, hidden: int, ffn: int, biases: bool) -> None:
    host = Packed(precision, hidden, ffn, biases=biases)
    layout = streamed(host, precision).layout
    gate_up, down = layout.gate_up(host.memory), layout.down(host.memory)
    for expert in range(E):
        truth = host.matrices(expert)
        assert torch.equal(gate_up[expert], torch.cat([truth.gate, truth.up]).bfloat16())
        assert torch.equal(down[expert], truth.down.bfloat16())
        if truth.biases is not None:
            gate_up_bias, down_bias = layout.bias(host.memory)
            assert torch.equal(gate_up_bias[expert], torch.cat(truth.biases[:2]))
            assert torch.equal(down_bias[expert], truth.biases.down)


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("experts_at_once", [1, 2, E])
@pytest.mark.parametrize("biases", [False, True])
def test_the_device_gives_what_the_host_gives(
    grouped: bool, experts_at_once: int, biases: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Packed("int4_g32", 64, 96, biases=biases)
    monkeypatch.setattr(module, "groups_at_once", lambda _: grouped)
    monkeypatch.setattr(module, "STREAMED_CHUNK_BYTES", experts_at_once * host.memory.shape[1])
    backend = streamed(host, "int4_g32")
    hidden, routing = call(64, 40)
    truth = host(hidden, routing)
    backend.stream.from_tokens = 40
    assert relative(backend(hidden, routing), truth) < TOLERANCE
    assert host.calls == 1
    assert backend.stream.nbytes == host.memory.nbytes


def test_experts_without_tokens_are_not_copied() -> None:
    backend = streamed(host := Packed("bf16", 64, 32), "bf16")
    backend.stream.from_tokens = 1
    hidden, routing = call(64, 12)
    some = Routing(ids=torch.where(routing.ids > 1, -1, routing.ids), gates=routing.gates)
    assert relative(backend(hidden, some), host(hidden, some)) < TOLERANCE
    assert backend.stream.nbytes == 2 * host.memory.shape[1]
    none = Routing(ids=torch.full_like(routing.ids, -1), gates=routing.gates)
    assert not backend(hidden, none).any()


def test_few_tokens_are_the_hosts() -> None:
    backend = streamed(host := Packed("int8", 64, 32), "int8")
    hidden, routing = call(64, 9)
    for from_tokens in (None, 10):
        backend.stream.from_tokens = from_tokens
        fetch, following = backend.begin(hidden, routing, None, None)
        assert torch.equal(fetch(), backend(hidden, routing))
        assert following is None
    assert host.calls == 4
    assert backend.stream.nbytes == 0


def test_the_crossover_is_where_the_hosts_line_meets_the_streams_time() -> None:
    at = streaming_threshold(0.256 + 1, 1.024 + 1, 4.0)  # 1 s and 1 ms a token
    assert at == pytest.approx(3000, abs=1)
    assert streaming_threshold(2.0, 3.0, 0.1) == 1
    backend = streamed(Packed("int8", 64, 32), "int8")
    backend.stream.from_tokens = 7
    assert crossover(backend, TOP_K, lambda: None) >= 1
    assert backend.stream.from_tokens == 7


def test_other_formats_are_refused() -> None:
    for precision in set(FORMATS) - set(DEVICE_UNPACKS):
        with pytest.raises(ValueError, match="device unpacks"):
            PackedLayout(hidden=64, ffn=64, precision="bf16", down_precision=precision)
