"""Transformers' continuous batching under a stream of requests, held against its own generation."""

from __future__ import annotations

import torch

from ktbench.engine.protocol import HostRole
from ktbench.engine.workload.stream import draw_stream
from ktbench.peers.transformers.serving import open_serving
from ktbench.peers.transformers.system import open_transformers
from ktbench.run.serving.driver import Driver
from ktbench.spec.engine import ServingSpec
from ktbench.spec.serving.stream import StreamSpec
from tests.tiny import tiny_spec

HOST = HostRole(cores=2)


def test_answers_are_those_of_plain_generation() -> None:
    stream = StreamSpec(requests=4, concurrency=2, answer=4)
    spec = tiny_spec(
        phase="serve",
        system="transformers",
        workload={"stream": stream, "steps": 2},
        serving=ServingSpec(cache_tokens=1024),
    )
    engine = open_serving([spec], HOST)
    driver = Driver(engine=engine, stream=draw_stream(spec.workload, 256), concurrency=2)
    driver.run_until(4)
    assert engine.state.running == 0
    engine.close()
    assert [one.tokens for one in driver.replay().requests] == [4] * 4
    network = open_transformers(spec.model, HOST).network
    prompt, answer = driver.answers[0].prompt, driver.answers[0].answer
    whole = network(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].float()
    for place, token in enumerate(answer, start=len(prompt) - 1):  # both round in bf16
        assert float(whole[place].max() - whole[place, token]) < 0.1 * float(whole[place].std())
