"""The file of the unmodified model's predictions: what it holds, and when it is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ktbench.eval.drift import ReferenceHeader, read_reference, write_reference

SUBJECT = ReferenceHeader(model="abc", phase="decode", text="def", windows=3, positions=6, vocab=50)
POSITIONS = (3, 1, 2)
LOGITS = np.random.default_rng(5).normal(size=(6, 50))
LOG_P = (LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True))).astype(np.float32)
WINDOWS = np.split(LOG_P, np.cumsum(POSITIONS)[:-1])


def write(path: Path, windows: list[np.ndarray] = WINDOWS) -> Path:
    with write_reference(path, SUBJECT) as keep:
        for log_p in windows:
            keep(log_p)
    return path


def read(path: Path, subject: ReferenceHeader = SUBJECT) -> list[np.ndarray]:
    return list(read_reference(path, subject, POSITIONS))


def test_what_is_read_is_what_was_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "below" / "base")
    for found, expected in zip(read(path), WINDOWS, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert [file.name for file in path.parent.iterdir()] == ["base"]
    assert (path.stat().st_size - LOG_P.nbytes) % 64 == 0


def test_a_later_baseline_replaces_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "base")
    write(path, [window[:, ::-1] for window in WINDOWS])
    np.testing.assert_array_equal(read(path)[1], WINDOWS[1][:, ::-1])


def test_a_file_that_is_not_whole_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "base"
    with pytest.raises(ValueError, match="400 bytes of predictions are missing"):
        write(path, WINDOWS[:-1])
    with pytest.raises(ValueError, match="predictions are of 49 tokens, the model's vocabulary has 50"):
        write(path, [WINDOWS[0][:, 1:]])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(
        ValueError, match="base: no predictions of the unmodified model, which has to be evaluated first"
    ):
        read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "xyz"}, "predictions of model=abc, this is xyz; evaluate the baseline again"),
        ({"phase": "prefill"}, "predictions of phase=decode, this is prefill; evaluate"),
        ({"text": "other"}, "predictions of text=def, this is other"),
        ({"vocab": 25}, "predictions of vocab=50, this is 25"),
    ],
)
def test_predictions_of_something_else_are_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / "base"), replace(SUBJECT, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cut", "end", "message"),
    [
        (slice(0, -1), b"", r"is damaged, \d+ bytes of \d+; evaluate the baseline again"),
        (slice(1, None), b"", "is no file of predictions; evaluate the baseline again"),
        (slice(0, 0), b"", "is no file of predictions"),
        (slice(0, 0), b"\xff\xfe\n", "is no file of predictions"),
        (slice(0, 0), b'{"model": 1}\n', "is no file of predictions"),
        (slice(0, -400), b"\0" * 400, "is damaged, window 2 holds no probabilities; evaluate the baseline again"),
        (slice(0, -400), b"\x7f" * 400, "window 2 holds no probabilities"),
        (slice(0, -400), b"\xff" * 400, "window 2 holds no probabilities"),
    ],
)
def test_damaged_files_are_refused(cut: slice, end: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "base")
    path.write_bytes(path.read_bytes()[cut] + end)
    with pytest.raises(ValueError, match=message):
        read(path)


def test_predictions_that_are_too_large_to_keep_are_refused() -> None:
    with pytest.raises(ValueError, match=r"limit: 600 windows, .* 18\.5 GiB .* allowed are 4 GiB; limit=129 would do"):
        replace(SUBJECT, windows=600, positions=600 * 64, vocab=129_280)
    replace(SUBJECT, windows=129, positions=129 * 64, vocab=129_280)
