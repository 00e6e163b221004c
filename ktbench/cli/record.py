"""`record`: which experts a model's routers choose, kept as an activation profile for placement."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ktbench.engine.workload.recorded import ActivationProfile
    from ktbench.spec.record import Cell

SUMMARY = "which experts the routers choose; saved as an activation profile"
_RUNS = Path("runs")
A_CELL_FAILED = 4


def run(overrides: Sequence[str]) -> int:
    """Run the prompts of one cell, print what was selected, save the profile. Exit code 4 where it could not be run.

    Raises RequestError before anything loads.
    """
    from ktbench.cli.progress import say
    from ktbench.engine.workload.recorded import read_profile
    from ktbench.run.apart import ChildFailed
    from ktbench.run.recording import Recording, record_apart

    words, output = split_output(overrides)
    cell, lacking = _cell(words)
    output = output or _default_output(cell.spec.model.name)
    if lacking:
        return _failed(f"UNSUPPORTED: {lacking}")
    _require_writable(output)
    try:
        record_apart(Recording(spec=cell.spec, output=str(output)), say)
    except ChildFailed as error:
        return _failed(str(error))
    print("\n".join(summary(read_profile(str(output), cell.spec.model))))
    print(f"\nwrote {output}")
    return 0


def split_output(words: Sequence[str]) -> tuple[list[str], Path | None]:
    """The overrides, and the file of `output=FILE`, which is no key of a spec. Raises RequestError."""
    from ktbench.spec.errors import RequestError

    files = [word.removeprefix("output=") for word in words if word.startswith("output=")]
    if len(files) > 1 or files == [""]:
        raise RequestError(f"record: output={' output='.join(files)}: name one file, such as output=profile.npz")
    return [word for word in words if not word.startswith("output=")], Path(files[0]) if files else None


def _cell(words: Sequence[str]) -> tuple[Cell, str]:
    """The one cell of the request, and why it cannot run here, empty where it can."""
    from ktbench.cli.request import plan_request, read_request
    from ktbench.spec.errors import RequestError

    request = read_request(words)
    if request.is_sweep:
        raise RequestError("record: takes one cell; use `sweep` for lists and ablations")
    if (machine := request.parts[0].spec.machine) is not None:
        raise RequestError(f"record machine={machine.name}: routers are asked on this machine, leave out machine=")
    work = request.parts[0].spec.workload
    if work.phase == "layer":
        raise RequestError("record workload.phase=layer: a layer alone has no router; allowed are prefill and decode")
    if work.routing != "model":
        raise RequestError(f"record workload.routing={work.routing}: routers are asked, leave workload.routing=model")
    planned = plan_request(request)
    cell = planned.cells[0]
    return cell, planned.lacking.get(cell.key, "")


def _default_output(model: str) -> Path:
    from datetime import UTC, datetime

    return _RUNS / f"profile-{Path(model).name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.npz"


def _require_writable(output: Path) -> None:
    from ktbench.spec.errors import RequestError

    if output.exists():
        kind = "a folder" if output.is_dir() else "there already"
        raise RequestError(f"record output={output}: is {kind}, name a new file")
    above = next(folder for folder in output.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise RequestError(f"record output={output}: nothing can be written to {above}")


def _failed(why: str) -> int:
    from ktbench.cli.progress import say

    say(f"ktbench record: {why}")
    return A_CELL_FAILED


def summary(profile: ActivationProfile) -> Iterator[str]:
    """What was run, then of each MoE layer how unevenly its experts were selected."""
    layers, experts = profile.counts.shape
    yield profile.source
    yield f"{profile.tokens} tokens, {layers} MoE layers of {experts} experts, {profile.architecture.top_k} a token"
    yield ""
    yield "MoE layer  hottest 10 % of experts  evenness"
    rows = zip(profile.hottest_share().tolist(), profile.evenness().tolist(), strict=True)
    for layer, (share, evenness) in enumerate(rows):
        yield f"{layer:>9}  {f'{share:.1%}':>23}  {evenness:>8.3f}"
