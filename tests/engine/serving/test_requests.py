"""How requests begin, wait and end, and what the features' counters say."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.serving.engine import open_serving
from ktbench.engine.serving.requests import QueueFull, ServeRequest
from ktbench.run.serving.answers import relative_error
from ktbench.spec.cells import plan_cells
from ktbench.spec.engine import ServingSpec
from ktbench.spec.features import FEATURES
from ktbench.spec.run_spec import ModelSpec, WorkloadSpec
from ktbench.spec.serving.stream import StreamSpec
from ktbench.spec.step.memory import MachineMemory, estimate_memory
from ktbench.spec.sweep import SweepSpec
from tests.drawing import few_of
from tests.engine.engines import CPUS, FUSED, TOLERANCE, TWO_CORES, cell, changed, needs_vector, saved
from tests.engine.families.zoo import VOCAB, tiny
from tests.engine.serving.serving import SMALL, answers, drawn, finished, opened, submit
from tests.engine.tiny import decode

pytestmark = needs_vector()
ALL: dict[str, Any] = {"batching": True, "chunked_prefill": True, "prefix_cache": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder: Path = tmp_path_factory.mktemp("qwen3_moe")
    return saved(tiny("qwen3_moe"), folder)


def test_a_thousand_requests_with_cancellations_lose_no_page() -> None:
    chance, model = random.Random(3), changed("qwen3_moe", num_hidden_layers=1)
    with closing(opened(model, {"cache_tokens": 120, "ram_bytes": 1024}, **ALL, **FUSED)) as engine:
        left, ended, alive = 1000, 0, set()
        shared = drawn((12,))[0]
        while ended < 1000:
            while left and engine.state.waiting < 20:
                key = str(left)
                prompt = shared[: chance.randrange(13)] + drawn((chance.randrange(1, 20),), seed=left)[0]
                engine.submit(ServeRequest(key=key, prompt=prompt, max_new=chance.randrange(1, 12)))
                alive.add(key)
                left -= 1
                if chance.random() < 0.3:
                    engine.cancel(chance.choice(sorted(alive)))
            for event in engine.step():
                if event.finish is not None:
                    alive.remove(event.key)
                    ended += 1
        state, counted = engine.state, engine.counters()
        assert state.free_pages + state.cached_pages == state.pages and not alive
        assert state.waiting == state.running == 0
        assert counted["preempted"] and counted["cached_prompt_tokens"]


def test_a_cancelled_request_gives_its_pages_back_at_once(model: ModelSpec) -> None:
    with closing(opened(model, batching=True)) as engine:
        submit(engine, drawn((30, 20)))
        engine.step()
        assert engine.state.running == 2
        engine.cancel("0")
        engine.cancel("0")
        engine.cancel("nobody")
        assert engine.state.running == 1
        assert engine.state.pages - engine.state.free_pages == 5  # of 20 tokens, 4 a page
        events = finished(engine)
        assert [(one.token, one.finish) for one in events["0"]] == [(None, "cancelled")]
        assert events["1"][-1].finish == "length"


def test_a_key_is_free_once_its_end_was_told(model: ModelSpec) -> None:
    """Else the end of the cancelled request would be taken for that of the new one."""
    (prompt,) = drawn((9,))
    with closing(opened(model, {}, **ALL)) as engine:
        submit(engine, [prompt], max_new=3)
        engine.cancel("0")
        with pytest.raises(ValueError, match="request 0: "):
            submit(engine, [prompt], max_new=3)
        assert [one.finish for one in engine.step()] == ["cancelled"]
        submit(engine, [prompt], max_new=3)
        assert len(finished(engine)["0"]) == 3


def test_an_answer_ends_with_a_token_that_ends_it(model: ModelSpec) -> None:
    (prompt,) = drawn((9,))
    with closing(opened(model)) as engine:
        ((first, second, *_),) = answers(engine, [prompt])
        assert second is not None
        engine.submit(ServeRequest(key="a", prompt=prompt, max_new=6, stop_ids=frozenset({second})))
        events = finished(engine)["a"]
        assert [one.token for one in events][-1] == second and events[-1].finish == "stop"
        assert len(events) == (1 if first == second else 2)


def test_what_can_never_run_is_refused(model: ModelSpec) -> None:
    with closing(opened(model, {"cache_tokens": 64, "max_waiting": 2})) as engine:
        assert engine.max_positions == 64
        with pytest.raises(ValueError, match=r"request a: .*64"):
            engine.submit(ServeRequest(key="a", prompt=(1,) * 60, max_new=5))
        submit(engine, drawn((4, 4)))
        with pytest.raises(ValueError, match="request 1: "):
            engine.submit(ServeRequest(key="1", prompt=(1,), max_new=1))
        with pytest.raises(QueueFull, match="2"):
            engine.submit(ServeRequest(key="b", prompt=(1,), max_new=1))
        finished(engine)


@pytest.mark.parametrize(
    "features",
    [{}, {"batching": True}, {"static_batch": 2}, {"chunked_prefill": True}, {"prefix_cache": True}, ALL],
    ids=str,
)
def test_counters_show_which_features_ran(model: ModelSpec, features: dict[str, Any]) -> None:
    with closing(opened(model, **features)) as engine:
        before = engine.counters()
        for _ in range(2):
            answers(engine, drawn((9, 20)))
        after = engine.counters()
        for feature in FEATURES:
            if feature.serving:
                moved = after[feature.counter] - before[feature.counter]
                assert (moved > 0) == bool(features.get(feature.name)), feature.name


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "gpt_oss", "mimo_v2_flash"])
@pytest.mark.parametrize(("cache_tokens", "total_bytes"), [(200, 0), (None, 0), (None, 2**20)])
def test_the_plan_counts_the_bytes_of_all_pages(name: str, cache_tokens: int | None, total_bytes: int) -> None:
    work = WorkloadSpec(phase="serve", prompt=1, steps=1, stream=StreamSpec(requests=1, concurrency=1))
    spec = cell(tiny(name), work, serving=ServingSpec(cache_tokens=cache_tokens, max_sequences=3))
    planned = estimate_memory(plan_cells(spec, SweepSpec()), MachineMemory(total_bytes=total_bytes))
    with closing(open_serving(spec, HostRole(cores=1, memory_bytes=total_bytes))) as engine:
        assert planned.cache == engine._cache.content(0).untyped_storage().nbytes()


def test_a_chunk_counts_where_a_prompt_was_cut_or_came_while_others_decode(model: ModelSpec) -> None:
    with closing(opened(model, batching=True, chunked_prefill=True)) as engine:

        def counted(prompts: list[tuple[int, ...]], later: list[tuple[int, ...]]) -> int:
            before = engine.counters()["prefill_chunks"]
            submit(engine, prompts)
            engine.step()
            for number, prompt in enumerate(later):
                engine.submit(ServeRequest(key=f"later {number}", prompt=prompt, max_new=1))
            finished(engine)
            return engine.counters()["prefill_chunks"] - before

        for lengths, chunks in (((9, 7), 0), ((16,), 0), ((9, 8), 2), ((40,), 2)):  # of 16 tokens
            assert counted(drawn(lengths), []) == chunks
        assert counted(drawn((9,)), drawn((5, 4), seed=2)) == 2


def test_the_time_of_scheduler_and_cache_is_a_part_of_that_of_steps(model: ModelSpec) -> None:
    with closing(opened(model, **ALL)) as engine:
        answers(engine, drawn((9, 20)))
        counted = engine.counters()
        assert 0 < counted["scheduler_ns"] < counted["step_ns"]


def test_prompt_tokens_from_the_cache_are_reported(model: ModelSpec) -> None:
    (prompt,) = drawn((20,))
    with closing(opened(model, prefix_cache=True)) as engine:
        for expected in (0, 16):  # four whole pages; at least one token is computed
            submit(engine, [prompt])
            assert {one.cached_tokens for one in finished(engine)["0"]} == {expected}


DEFERRALS = ({"deferral": 1}, {"skipping": 1}, {"deferral": 1, "defer_prefill": True})
PREPARED = [deferral | {"packed_dense": lean} for lean in (False, True) for deferral in DEFERRALS]


@pytest.mark.parametrize("deferral", few_of(PREPARED, PREPARED[-2:]), ids=str)
def test_deferral_acts_on_the_same_tokens_in_any_step(model: ModelSpec, deferral: dict[str, Any]) -> None:
    arm = FUSED | deferral
    with closing(opened(model, **arm)) as engine:
        truth = answers(engine, drawn((9, 40, 17)))
        counted = dict(engine.counters())
    with closing(opened(model, **arm, batching=True, chunked_prefill=True)) as engine:
        assert answers(engine, drawn((9, 40, 17))) == truth
        name = "skipped_experts" if "skipping" in deferral else "deferred_experts"
        assert engine.counters()[name] == counted[name] > 0


ROLES = [deferral | {"packed_dense": lean} for lean in (False, True) for deferral in ({}, {"deferral": 1})]


@TWO_CORES
@pytest.mark.parametrize("deferral", few_of(ROLES, [ROLES[1], ROLES[2]]), ids=str)
def test_roles_with_cores_of_their_own_give_the_same_answers(model: ModelSpec, deferral: dict[str, Any]) -> None:
    arm = FUSED | deferral
    with closing(opened(model, **arm)) as engine:
        truth = answers(engine, drawn((9, 40, 17)))
    split = cell(model, decode(), threads=None, roles="split", serving=ServingSpec(**SMALL), **arm, **ALL)
    with closing(open_serving(split, HostRole(cores=len(CPUS), cpus=CPUS))) as engine:
        assert answers(engine, drawn((9, 40, 17))) == truth
        counted = engine.counters()
        assert counted["host_busy_ns"] and counted["device_wait_ns"]


@pytest.mark.parametrize(
    ("name", "engine", "named"),
    [
        ("deepseek_v32", {}, "plain keys and values"),
        ("deepseek_v4", {}, "plain keys and values, not those of compressed_sparse_attention"),
        ("qwen3_next", {}, "plain keys and values"),
        ("qwen3_moe", {"device": "cuda"}, "engine.device=cuda"),
        ("qwen3_moe", {"deferral": "auto", "roles": "split"} | FUSED, "engine.deferral=auto"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_loads(
    name: str, engine: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("ktbench.engine.serving.engine.load_components")
    with pytest.raises(Unsupported, match=named):
        open_serving(cell(tiny(name), decode(), threads=None, **engine), HostRole(cores=2))


def test_a_forced_answer_has_the_logits_that_its_tokens_were_chosen_by(model: ModelSpec) -> None:
    (prompt,) = drawn((30,))
    with closing(opened(model, **ALL)) as engine:
        submit(engine, [prompt], logits=True)
        free = finished(engine)["0"]
        answer = tuple(one.token for one in free if one.token is not None)
        before = engine.counters()["cached_prompt_tokens"]
        submit(engine, [prompt], max_new=len(answer), forced=answer, logits=True)
        forced = finished(engine)["0"]
        assert engine.counters()["cached_prompt_tokens"] == before
        assert tuple(one.token for one in forced) == answer
        for one, other in zip(free, forced, strict=True):
            assert one.logits is not None and other.logits is not None
            assert int(one.logits.argmax()) == one.token
            assert relative_error(one.logits[None], other.logits[None]) < TOLERANCE
        others = tuple((token + 1) % VOCAB for token in answer)
        submit(engine, [prompt], max_new=len(answer), forced=others)
        assert tuple(one.token for one in finished(engine)["0"]) == others


def test_a_forced_answer_is_as_long_as_the_answer() -> None:
    with pytest.raises(ValueError, match="2 tokens are forced, max_new=3"):
        ServeRequest(key="1", prompt=(1,), max_new=3, forced=(1, 2))


def test_what_was_cached_can_be_forgotten(model: ModelSpec) -> None:
    (prompt,) = drawn((33,))
    with closing(opened(model, {"ram_bytes": 1 << 20}, **ALL)) as engine:
        (first,) = answers(engine, [prompt])
        engine.move_cached(to_disk=False)
        assert answers(engine, [prompt]) == [first]
        engine.forget_cached()
        assert answers(engine, [prompt]) == [first]
        assert (engine.counters()["cached_prompt_tokens"], engine.counters()["ram_pages_read"]) == (32, 8)
        assert engine.state.free_pages + engine.state.cached_pages == engine.state.pages


@pytest.mark.parametrize("to_disk", [False, True])
def test_cached_pages_are_found_where_they_were_moved(model: ModelSpec, to_disk: bool, tmp_path: Path) -> None:
    (prompt,) = drawn((33,))
    levels = {"ram_bytes": 1 << 20, "disk": str(tmp_path), "disk_bytes": 1 << 20}
    with closing(opened(model, levels, **ALL)) as engine:
        (first,) = answers(engine, [prompt])
        held = engine.state.cached_pages
        engine.move_cached(to_disk=to_disk)
        assert held and not engine.state.cached_pages
        assert answers(engine, [prompt]) == [first]
        counted = engine.counters()
        assert counted["cached_prompt_tokens"] == 32
        assert (counted["ram_pages_read"], counted["disk_hits"]) == ((0, 8) if to_disk else (8, 0))
