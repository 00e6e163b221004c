"""Bytes of workers, and what is refused for not fitting."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from ktbench.spec.cells import plan_cells
from ktbench.spec.engine import ServingSpec
from ktbench.spec.errors import RequestError
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Cell
from ktbench.spec.serving.pages import DISK_MEMORY_BYTES
from ktbench.spec.serving.stream import StreamSpec
from ktbench.spec.step.memory import MachineMemory, MemoryEstimate, estimate_memory, require_memory, worker_bytes
from ktbench.spec.sweep import SweepSpec
from tests.tiny import tiny_cell, tiny_spec

LAYER = 8 * 3 * 64 * 32
LADDER = SweepSpec(name="s", arms=("base", "+v", "+v+d"))
CACHE = 100_000


def memory(free_bytes: int = 0) -> MachineMemory:
    return MachineMemory(free_bytes=free_bytes, cache_bytes=CACHE)


def estimate(*cells: Cell) -> MemoryEstimate:
    return estimate_memory(cells, memory())


def test_each_layout_is_counted_once() -> None:
    base, fused = tiny_cell("base"), tiny_cell("+v", avx512=True)
    both = estimate(base, fused)
    assert both.original == both.packed == 2 * base.spec.model.shape.routed_params
    assert estimate(base).packed == 0
    assert estimate(fused).original == 0


def test_a_layer_alone_is_held_often_enough_to_read_past_the_cache_and_nothing_else_with_it() -> None:
    base, fused = tiny_cell("base", phase="layer"), tiny_cell("+v", phase="layer", avx512=True)
    need = estimate(base, fused)
    copies = need.packed // (2 * LAYER)
    assert need.packed == need.original == copies * 2 * LAYER
    assert (copies - 1) * 2 * LAYER <= 1.25 * CACHE < copies * 2 * LAYER
    assert need.others == 0
    assert estimate(fused).original == 0


def test_training_adds_lora_its_optimiser_and_what_the_backward_pass_needs() -> None:
    def trained(label: str = "+v", avx512: bool = True, **changed: Any) -> int:
        work = {"adapters": "both", "lora_rank": 8, "recompute": True} | changed
        return estimate(tiny_cell(label, phase="train", workload=work, avx512=avx512)).trained

    ours, shape = trained(), tiny_spec().model.shape
    lora_bytes = 5 * 4 * 8 * shape.moe_layers * shape.experts * (2 * shape.hidden + 3 * shape.expert_ffn)
    assert ours > lora_bytes
    assert trained(recompute=False) > ours > trained(adapters="attention")
    assert trained("base", avx512=False) > ours + 2 * shape.experts * shape.expert_params
    assert estimate(tiny_cell("+v", avx512=True)).trained == 0


def test_precisions_are_workers_of_their_own() -> None:
    sweep = SweepSpec(arms=("base", "+v", "+v int8", "+v int4_g32"))
    cells = plan_cells(tiny_spec(phase="layer"), sweep)
    sizes = worker_bytes(cells, memory())
    assert list(sizes) == list(dict.fromkeys(cell.weights_key for cell in cells))
    assert len(sizes) == 3


def test_a_model_that_does_not_fit_is_refused_with_needed_and_free_bytes() -> None:
    cells = plan_cells(tiny_spec(), LADDER)
    with pytest.raises(RequestError, match=r"needs .* GiB \(.* bytes\), free are 0.0 GiB \(1,000 bytes\)"):
        require_memory(cells, memory(1000))
    assert require_memory(cells, memory(1 << 40)) == estimate(*cells).total


def test_nothing_to_run_needs_nothing() -> None:
    assert require_memory([], memory(0)) == 0


def test_parts_need_not_fit_together_but_each_must() -> None:
    one = plan_cells(tiny_spec(phase="layer"), LADDER, "one")
    two = plan_cells(tiny_spec(phase="layer", precision="int8", avx512=True), SweepSpec(), "two")
    sizes = {cells[0].part: sum(worker_bytes(cells, memory()).values()) for cells in (one, two)}
    larger = max(sizes.values())
    assert require_memory([*one, *two], memory(larger)) == larger
    assert require_memory([*one, *two], memory(1 << 40)) == sum(sizes.values())
    with pytest.raises(RequestError, match="^one: tiny with one layer needs .*; build fewer with model.experts=N"):
        require_memory([*one, *two], memory(sizes["one"] - 1))


POSITION = 2 * 2 * (2 * 2 * 16)  # bytes: bf16, layers, keys and values of two heads of 16
STREAM: dict[str, Any] = {"stream": StreamSpec(requests=4, concurrency=1), "steps": 1}


def served(features: dict[str, Any] | None = None, **limits: Any) -> Cell:
    return tiny_cell(phase="serve", workload=STREAM, serving=ServingSpec(**limits), **(features or {}))


def test_pages_of_served_requests_are_counted_and_copies_where_the_prefix_cache_keeps_them() -> None:
    few, many = served(cache_tokens=64), served(cache_tokens=640)
    assert estimate(few).cache == (64 + 16) * POSITION
    assert estimate(few, many).cache == (640 + 16) * POSITION, "the cells of a worker take turns"
    assert estimate(many).total - estimate(few).total == (640 - 64) * POSITION
    copies = {"cache_tokens": 64, "ram_bytes": 10**6}
    assert estimate(served(**copies)).cache == estimate(few).cache
    assert estimate(served({"prefix_cache": True}, **copies)).cache == estimate(few).cache + 10**6
    assert estimate(tiny_cell()).cache == 0


@pytest.mark.parametrize("most", [10**6, 2**40])
def test_the_buffers_of_the_disk_level_are_counted(most: int) -> None:
    """One of pages that wait to be written, one of those read ahead."""
    on = {"prefix_cache": True}
    found = estimate(served(on, cache_tokens=64, disk="pages", disk_bytes=most))
    assert found.cache - estimate(served(on, cache_tokens=64)).cache == 2 * min(most, DISK_MEMORY_BYTES)


def test_slots_of_llama_server_are_counted() -> None:
    def server(concurrency: int, answer: int) -> Cell:
        stream = StreamSpec(requests=8, concurrency=concurrency, answer=answer)
        peer = PeerSpec(llama_server="llama-server")
        return tiny_cell(phase="serve", system="llama-server", peer=peer, workload={"stream": stream, "steps": 1})

    assert estimate(server(1, 4)).cache == 256 * POSITION
    assert estimate(server(1, 300), server(8, 4)).cache == 8 * 512 * POSITION, "all cells have one server"


def test_without_a_number_pages_take_a_fourth_of_the_memory_at_most() -> None:
    whole = MachineMemory(total_bytes=4 * 1000 * 16 * POSITION)
    assert estimate_memory([served()], whole).cache == 1001 * 16 * POSITION
    assert (
        estimate_memory([served(max_sequences=2)], memory()).cache
        == (2 * served().spec.model.shape.positions + 16) * POSITION
    )


def test_pages_that_do_not_fit_are_refused_with_a_number_that_does() -> None:
    cells = (served(cache_tokens=16 * 1000),)
    free = memory(estimate(*cells).total - 100 * 16 * POSITION)
    with pytest.raises(RequestError, match=r"; engine\.serving\.cache_tokens=14400 would fit"):
        require_memory(cells, free)
    require_memory((served(cache_tokens=14400),), free)
    with pytest.raises(RequestError):
        require_memory((served(cache_tokens=14400 + 16),), free)


def test_what_does_not_fit_names_the_most_layers_that_do() -> None:
    """A vocabulary that shrinks with the depth is most of this model: by its layers' bytes alone none would fit."""
    spec = tiny_spec()
    deep = spec.model.config | {"num_hidden_layers": 8, "vocab_size": 200_000}
    model = replace(spec.model, config=deep, full_layers=8, full_vocab=200_000)
    cells = plan_cells(replace(spec, model=model), SweepSpec(arms=("base",), control=False))

    def needed(layers: int) -> int:
        sliced = replace(model, config=deep | {"num_hidden_layers": layers, "vocab_size": 25_000 * layers})
        return sum(worker_bytes(plan_cells(replace(spec, model=sliced), SweepSpec(arms=("base",))), memory()).values())

    with pytest.raises(RequestError, match=r"model\.layers=3 would fit"):
        require_memory(cells, memory(needed(3)))
    with pytest.raises(RequestError, match="not even one MoE layer fits"):
        require_memory(cells, memory(needed(1) - 1))


def test_what_does_not_fit_names_a_precision_that_does() -> None:
    cells = (tiny_cell("+v", avx512=True),)
    int4 = (tiny_cell("+v int4_g32", avx512=True, precision="int4_g32"),)
    free = memory((estimate(*cells).total + estimate(*int4).total) // 2)
    with pytest.raises(RequestError) as refused:
        require_memory(cells, free)
    (precision,) = re.findall(r"precision=(\w+)", str(refused.value))
    require_memory((tiny_cell("+v", avx512=True, precision=precision),), free)
    with pytest.raises(RequestError) as refused:
        require_memory((*cells, tiny_cell("base")), free)
    assert "precision" not in str(refused.value)
