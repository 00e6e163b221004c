"""What cannot run, as rows."""

from __future__ import annotations

from ktbench.spec.limits import Limit, broken
from tests.tiny import tiny_spec

ROWS = (
    Limit(lambda spec: spec.workload.batch > 1, lambda spec: f"not {spec.workload.batch}", "workload.batch precision"),
    Limit(lambda spec: spec.workload.phase == "decode", "no decode", "model"),
)


def test_rows_that_hold_name_their_keys_with_values() -> None:
    spec = tiny_spec(workload={"batch": 2})
    assert [str(reason) for reason in broken(ROWS, spec)] == [
        "workload.batch=2 precision=bf16: not 2",
        f"model={spec.model.name}: no decode",
    ]
    assert [reason.where for reason in broken(ROWS, tiny_spec())] == [f"model={spec.model.name}"]


def test_rows_without_keys_are_of_what_they_stand_in() -> None:
    row = Limit(lambda spec: True, "cannot")
    assert [str(reason) for reason in broken([row], tiny_spec(), where="+n")] == ["+n: cannot"]
