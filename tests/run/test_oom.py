"""What the kernel's counters of ended processes say, wherever they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.run.child import OomCount, killed_reason, oom_count

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
V2 = "low 0\nhigh 0\nmax 7\noom 5\noom_kill 4\noom_group_kill 0\n"


@pytest.mark.parametrize(
    ("own", "files", "kills"),
    [
        ("0::/job/1\n", {"job/1/memory.events": V2}, 4),
        ("0::/elsewhere\n", {"memory.events": V2}, 4),
        ("4:cpu,memory:/job\n0::/\n", {"memory/job/memory.oom_control": V1}, 3),
        ("4:memory:/outside\n", {"memory/memory.oom_control": V1}, 3),
        ("0::/\n", {}, 9),
        ("nonsense", {}, 9),
        ("4:memory:/old\n", {"memory/old/memory.oom_control": "under_oom 0\n"}, 9),
    ],
)
def test_the_nearest_counter_is_read(tmp_path: Path, own: str, files: dict[str, str], kills: int) -> None:
    for name, text in {**files, "own": own, "vmstat": "pgfault 1\noom_kill 9\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_count(tmp_path, tmp_path / "own", tmp_path / "vmstat").kills == kills


def test_nothing_is_guessed_where_nobody_counts(tmp_path: Path) -> None:
    unknown = oom_count(tmp_path, tmp_path / "own", tmp_path / "vmstat")
    assert unknown.kills is None
    no_memory, by = killed_reason(unknown, unknown)
    assert not no_memory and "does not report which" in by


def test_an_ending_is_put_down_to_memory_only_where_the_counter_moved() -> None:
    before, after = (OomCount(kills=kills, where="in this cgroup") for kills in (1, 2))
    assert killed_reason(before, after) == (
        True,
        "the kernel because memory ran out (it counted an oom_kill in this cgroup)",
    )
    assert killed_reason(before, before) == (
        False,
        "SIGKILL from outside: the kernel counted no oom_kill in this cgroup",
    )
