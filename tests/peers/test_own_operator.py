"""An experts operator of the user's own: checked, refused with a reason, known by its content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from docs.gen.repository import DOCS
from ktbench.engine.layer import LayerSystem
from ktbench.engine.load_layer import load_layer
from ktbench.engine.protocol import HostRole, System, Unsupported
from ktbench.peers.transformers.layer import open_layer
from ktbench.peers.transformers.system import open_transformers
from ktbench.run.check import check
from ktbench.run.request import plan_request, read_request
from ktbench.spec.errors import RequestError
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from ktbench.spec.wire import spec_id
from tests.engine.tiny import layer, run, spec, tiny_model

ONE = HostRole(cores=1)
DECODE = WorkloadSpec(phase="decode", prompt=6, steps=2)
HALF = "import torch\nclass Experts(torch.nn.Module):\n    def __init__(self, original):\n        super().__init__()\n"
HALF += "    def forward(self, hidden, ids, gates):\n        return hidden / 2\n"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The operator that the how-to shows."""
    _, _, rest = (DOCS / "howto" / "operator.md").read_text(encoding="utf-8").partition("```python\n")
    code = rest.partition("```")[0]
    assert len(code.splitlines()) <= 30
    file = tmp_path / "my_experts.py"
    file.write_text(code)
    return file


def cell(file: Path, work: WorkloadSpec, content: str = "one") -> RunSpec:
    peer = PeerSpec(implementation="own", operator=str(file), operator_id=content)
    return replace(spec(tiny_model(), work), system="transformers", peer=peer)


def eager(of: RunSpec) -> RunSpec:
    return replace(of, peer=PeerSpec(implementation="eager"))


def opened(requested: RunSpec) -> System:
    layer_alone = requested.workload.phase == "layer"
    system: Any = open_layer(requested.model, ONE) if layer_alone else open_transformers(requested.model, ONE)
    system.configure(requested)
    return system


def test_the_operator_of_the_how_to_gives_what_the_family_gives(written: Path) -> None:
    base, work = load_layer(tiny_model(), host=ONE), layer(batch=9)
    base.configure(spec(base.model, work))
    truth = run(base, 3)
    requested = cell(written, work)
    system = opened(requested)
    assert isinstance(system, LayerSystem)
    for one, expected in zip(run(system, 3), truth, strict=True):
        assert (one - expected).norm() < 0.01 * expected.norm()
    assert check(system.observe(), system.reference, tolerance=0.01).outcome is Outcome.OK
    assert any("my_experts.py (one)" in note for note in system.notes())


def test_whole_steps_run_with_it_and_without_it_again(written: Path) -> None:
    requested = cell(written, DECODE)
    system = opened(requested)
    own = run(system, DECODE.steps)
    system.configure(eager(requested))
    plain = run(system, DECODE.steps)
    for one, expected in zip(own, plain, strict=True):
        assert (one - expected).norm() < 0.02 * expected.norm()
    written.write_text(HALF)
    system.configure(cell(written, DECODE, "two"))
    assert not torch.allclose(run(system, DECODE.steps)[0], plain[0], rtol=0.02)
    assert check(system.observe(), system.reference, tolerance=0.01).outcome is Outcome.WRONG
    system.configure(eager(requested))
    for one, expected in zip(run(system, DECODE.steps), plain, strict=True):
        assert torch.equal(one, expected)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("class Experts:\n    def __init__(self, original): pass\n", "must be a torch.nn.Module"),
        ("import nowhere_to_be_found\nclass Experts: pass\n", "nowhere_to_be_found"),
        (HALF.replace("hidden / 2", "hidden.reshape(3, 5, 7)"), "shape"),
    ],
)
@pytest.mark.parametrize("work", [DECODE, layer(batch=4)], ids=["decode", "layer"])
def test_what_cannot_run_says_why(tmp_path: Path, code: str, says: str, work: WorkloadSpec) -> None:
    (tmp_path / "broken.py").write_text(code)
    with pytest.raises(Unsupported, match=says):
        opened(cell(tmp_path / "broken.py", work))


WORDS = ("model=tiny", "sweep.arms=[base,transformers own]")


def test_a_request_knows_the_content_of_the_file(written: Path) -> None:
    def ids() -> list[str]:
        cells = plan_request(read_request([*WORDS, f"peer.operator={written}"])).cells
        return [spec_id(one.spec) for one in cells if one.label != "base (A/A)"]

    base, own = ids()
    written.write_text(written.read_text() + "\n# changed\n")
    assert ids()[0] == base
    assert ids()[1] != own


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (None, "No such file"),
        ("def experts(): pass\n", "defines no class Experts"),
        ("class Experts(:\n", "is no Python"),
    ],
)
def test_a_file_that_is_none_is_refused_at_once(tmp_path: Path, code: str | None, says: str) -> None:
    file = tmp_path / "mine.py"
    if code is not None:
        file.write_text(code)
    with pytest.raises(RequestError, match=f"^peer.operator={file}: .*{says}"):
        read_request([*WORDS, f"peer.operator={file}"])


def test_without_a_file_one_line_says_how_to_name_it() -> None:
    with pytest.raises(RequestError, match=r"peer\.operator=FILE\.py"):
        plan_request(read_request([*WORDS]))
    with pytest.raises(RequestError, match="takes one file"):
        read_request([*WORDS, "peer.operator=a.py,b.py"])
