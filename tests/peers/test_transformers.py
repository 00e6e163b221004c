"""Plain Transformers as a peer: what it gives is what its network gives, and every implementation really runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from ktbench.engine.decode.inputs import CACHE
from ktbench.engine.forms import is_experts
from ktbench.engine.protocol import HostRole, System, Unsupported
from ktbench.engine.workload.routing import prompt_ids
from ktbench.peers.transformers.system import PlainTransformers, open_transformers
from ktbench.run.messages import RecordIds
from ktbench.run.session import Session
from ktbench.spec.peers import IMPLEMENTATIONS, PeerSpec
from ktbench.spec.record import Cell, Outcome, Record
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.support import unsupported
from ktbench.spec.wire import spec_id
from tests.engine.families.plain import build
from tests.engine.tiny import decode, layer, load, logits_of_steps, prefill, run, spec, tiny_model
from tests.fake import FakeRoofs

pytestmark = pytest.mark.peers

FAMILIES = ["qwen3_30b_a3b", "mixtral_8x7b", "deepseek_v3"]
BOTH = [decode(2), prefill(2)]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def cell_spec(
    model: ModelSpec, work: WorkloadSpec, implementation: Any = "eager", threads: int = 1, tune_s: float = 0
) -> RunSpec:
    peer = PeerSpec(implementation=implementation, tune_s=tune_s)
    return replace(spec(model, work, threads=threads), system="transformers", peer=peer)


def opened(model: ModelSpec) -> PlainTransformers:
    return open_transformers(model, HostRole(cores=1))


def configured(model: ModelSpec, work: WorkloadSpec, implementation: Any = "eager") -> PlainTransformers:
    system = opened(model)
    system.configure(cell_spec(model, work, implementation))
    return system


def use(network: PreTrainedModel, implementation: str) -> None:
    for module in network.modules():
        if is_experts(module):
            config: Any = module.config
            config._experts_implementation = implementation


@torch.inference_mode()
def by_hand(network: PreTrainedModel, work: WorkloadSpec, implementation: str) -> list[Tensor]:
    """Logits of every step; decode's prompt is run by the experts' own loop."""
    torch.set_num_threads(1)
    tokens = work.steps * work.prompt if work.phase == "prefill" else work.prompt + work.steps
    ids = torch.from_numpy(prompt_ids(256, work.batch, tokens, work.seed))
    if work.phase == "prefill":
        use(network, implementation)
        return [network(prompt).logits[:, -1].float() for prompt in ids.split(work.prompt, dim=1)]
    use(network, "eager")
    cache = network(ids[:, : work.prompt], use_cache=True)[CACHE]
    use(network, implementation)
    at = range(work.prompt, tokens)
    return [network(ids[:, i : i + 1], **{CACHE: cache}).logits[:, -1].float() for i in at]


def trial(system: System, run_spec: RunSpec) -> Record:
    session = Session(
        system=system, roofs=FakeRoofs(), ids=RecordIds(code_id="code", env_id="env", worker_session="here")
    )
    return session.trial(Cell(label=run_spec.label, spec=run_spec, spec_id=spec_id(run_spec)), 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_network_called_by_hand(name: str) -> None:
    model = tiny_model(name)
    network, system = build(model), opened(model)
    for work in BOTH:
        for implementation in IMPLEMENTATIONS:
            system.configure(cell_spec(model, work, implementation))
            for again in range(2):
                seen = run(system, work.steps)
                for number, (one, expected) in enumerate(
                    zip(seen, by_hand(network, work, implementation), strict=True)
                ):
                    assert one.std() > 0
                    assert torch.equal(one, expected), (work.phase, implementation, number, again)


@pytest.mark.parametrize(
    "work", [*BOTH, decode(3, shortest=5), prefill(3, shortest=4), prefill(2, chunk=5), decode(2, chunk=4)]
)
def test_eager_gives_what_base_gives(work: WorkloadSpec) -> None:
    model = tiny_model()
    base = logits_of_steps(model, work)
    for one, expected in zip(run(configured(model, work), work.steps), base, strict=True):
        assert torch.equal(one, expected)


def test_a_checkpoint_gives_what_its_weights_give(tmp_path: Path) -> None:
    model = tiny_model()
    build(model).save_pretrained(tmp_path)
    read = replace(model, path=str(tmp_path))
    for one, expected in zip(run(configured(read, BOTH[0]), 3), run(configured(model, BOTH[0]), 3), strict=True):
        assert torch.equal(one, expected)


def test_nothing_of_the_network_is_replaced() -> None:
    model = tiny_model()
    system = configured(model, BOTH[0])
    assert [type(m) for m in system.network.modules()] == [type(m) for m in build(model).modules()]
    run(system, 1)
    system.observe()
    assert not any(module._forward_hooks for module in system.network.modules())


def test_each_implementation_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"grouped_mm": 0, "batched_mm": 0}

    def counting(name: str, whole: Any) -> Any:
        def counted(*arguments: Any) -> Tensor:
            calls[name] += 1
            output: Tensor = whole(*arguments)
            return output

        return counted

    for name in calls:
        monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS._local_mapping, name, counting(name, ALL_EXPERTS_FUNCTIONS[name]))
    model, work = tiny_model(), decode()
    system = opened(model)
    for implementation in ("batched_mm", "eager", "grouped_mm", "batched_mm"):
        system.configure(cell_spec(model, work, implementation))
        before = dict(calls)
        run(system, work.steps)
        moved = {name: calls[name] - before[name] for name in calls}
        assert moved == {name: 2 * work.steps if name == implementation else 0 for name in calls}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_trial_is_proved_by_the_experts_check(name: str, implementation: str) -> None:
    model = tiny_model(name)
    system = opened(model)
    for work in BOTH:
        record = trial(system, cell_spec(model, work, implementation))
        assert record.outcome is Outcome.OK, record.why
        assert len(record.samples_s) == work.steps
        assert record.error is not None
        assert 0 < record.error < 0.01
        assert record.evidence == () or not any(one.seen for one in record.evidence)


@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
def test_a_broken_implementation_is_seen(implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole: Any = ALL_EXPERTS_FUNCTIONS[implementation]

    def forgetful(module: Any, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        output: Tensor = whole(module, hidden, ids[:, :-1], gates[:, :-1])
        return output

    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS._local_mapping, implementation, forgetful)
    model = tiny_model()
    record = trial(opened(model), cell_spec(model, decode(), implementation))
    assert record.outcome is Outcome.WRONG
    assert not record.samples_s


@pytest.mark.parametrize("work", [*BOTH, prefill(2, chunk=5)])
def test_work_is_that_of_base(work: WorkloadSpec) -> None:
    model = tiny_model()
    base = load(model)
    base.configure(spec(model, work))
    assert configured(model, work, "grouped_mm").work() == base.work()


def test_it_shows_no_feature_roles_or_choices() -> None:
    system = configured(tiny_model(), decode())
    assert not system.counters()
    assert not system.chosen()
    with pytest.raises(Unsupported, match="no roles to draw"):
        system.timeline()


def test_notes_tell_how_it_was_tuned_and_what_runs() -> None:
    requested = cell_spec(tiny_model(), decode(), "grouped_mm", threads=2, tune_s=0.5)
    system = open_transformers(requested.model, HostRole(cores=2))
    system.configure(requested)
    tuned, described = system.notes()
    assert tuned.startswith("transformers grouped_mm tuned in ")
    assert "threads 2" in tuned
    assert "experts_implementation=grouped_mm, attn_implementation=sdpa" in described
    assert described.endswith(f"with {torch.get_num_threads()} threads")
    system.configure(requested)
    assert system.notes() == (tuned, described)


def test_what_it_cannot_run_is_named() -> None:
    model = tiny_model()
    with pytest.raises(Unsupported, match="precision=int8"):
        opened(model).configure(replace(cell_spec(model, decode()), precision="int8"))


def test_batched_mm_is_refused_where_its_copies_do_not_fit() -> None:
    model = tiny_model()
    expert = 3 * 64 * 32 * 2
    fits = cell_spec(model, prefill(4, prompt=100_000, chunk=20_000), "batched_mm")
    assert not unsupported(fits)
    whole = cell_spec(model, prefill(4, prompt=100_000), "batched_mm")
    why = unsupported(whole)
    assert f"400000 tokens with top_k=4, {400_000 * 4 * expert / 2**30:.1f} GiB" in why
    assert "100000 tokens" in unsupported(cell_spec(model, layer(batch=100_000, steps=1), "batched_mm"))
    assert not unsupported(cell_spec(model, decode(4, prompt=100_000), "batched_mm"))
    assert not unsupported(cell_spec(model, prefill(4, prompt=100_000), "grouped_mm"))


def test_shapes_that_a_kernel_refuses_are_unsupported() -> None:
    model = tiny_model(moe_intermediate_size=36)
    system = opened(model)
    with pytest.raises(Unsupported, match="experts_implementation=grouped_mm is refused: strides"):
        system.configure(cell_spec(model, decode(), "grouped_mm"))
    system.configure(cell_spec(model, decode()))


@pytest.mark.parametrize(("implementation", "says"), [("grouped_mm", "is refused"), ("batched_mm", "runs eager")])
def test_a_family_with_one_way_only_is_unsupported(
    implementation: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    system = opened(model)
    monkeypatch.setattr(type(system.network), "_can_set_experts_implementation", classmethod(lambda _: False))
    with pytest.raises(Unsupported, match=says):
        system.configure(cell_spec(model, decode(), implementation))


def test_wrong_use_is_named() -> None:
    model = tiny_model()
    system = opened(model)
    with pytest.raises(ValueError, match="configure comes before"):
        system.start()
    with pytest.raises(ValueError, match="is loaded"):
        system.configure(cell_spec(tiny_model(seed=1), decode()))
    with pytest.raises(ValueError, match="engine.threads=2: allowed are 1 to 1"):
        system.configure(cell_spec(model, decode(), threads=2))
    system.configure(cell_spec(model, decode()))
    run(system, 3)
    with pytest.raises(ValueError, match="all were done"):
        system.step()
