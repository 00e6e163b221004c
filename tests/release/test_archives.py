"""What is handed out: exactly what git tracks. Looks at `dist/`, which `nox -s wheel` fills."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

import ktbench
from ktbench.host.code import read_commit

ROOT = Path(__file__).parents[2]
SHIPPED = ("ktbench", "conf", "ablations", "evals", "reports")
LEFT_OUT = "reports/recorded/"  # runs that a checkout has to read, and no command asks for
LARGEST_BYTES = 16 * 2**20
MADE_BY_THE_BUILD = r"ktbench/_kernels\.[^/]*\.so|ktbench/_build\.json"

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the git checkout")


def git(*words: str) -> list[str]:
    command = ["git", "-C", str(ROOT), *words, "-z"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")[:-1]


@pytest.fixture(scope="module")
def sources() -> set[str]:
    """Files of the checkout that git does not ignore."""
    return {name for name in git("ls-files", "--cached", "--others", "--exclude-standard") if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel in `dist/`, if it is of this commit and nothing was changed then or since."""
    found = sorted((ROOT / "dist").glob(f"ktbench_moe-{ktbench.__version__}-*.whl"))
    if not found:
        pytest.skip("dist/ holds no wheel of this version: nox -s wheel makes it")
    with zipfile.ZipFile(found[0]) as archive:
        built, now = json.loads(archive.read("ktbench/_build.json"))["commit"], read_commit(ROOT)
    if now is None or now.dirty or built != {"sha": now.sha, "dirty": False}:
        pytest.skip("the wheel in dist/ was not built from this commit as it is")
    return found[0]


def test_nothing_large_or_ignored_is_tracked() -> None:
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard") == []
    tracked = [path for path in map(ROOT.joinpath, git("ls-files")) if path.exists()]
    assert [path.name for path in tracked if path.stat().st_size > LARGEST_BYTES or path.suffix == ".whl"] == []


def test_the_sdist_is_what_git_tracks(wheel: Path, sources: set[str]) -> None:
    with tarfile.open(wheel.parent / f"ktbench_moe-{ktbench.__version__}.tar.gz") as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert names - {"PKG-INFO"} == sources


def test_the_wheel_is_the_package_its_data_and_the_extension(wheel: Path, sources: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    about = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    assert any(name.endswith("/licenses/LICENSE") for name in about)
    made = {name for name in names if re.fullmatch(MADE_BY_THE_BUILD, name)}
    assert len(made) == 2
    shipped = {name for name in sources if name.partition("/")[0] in SHIPPED and not name.startswith(LEFT_OUT)}
    packaged = {name if name.startswith("ktbench/") else f"ktbench/{name}" for name in shipped}
    assert names - about - made == packaged


def test_the_wheel_is_tagged_for_manylinux(wheel: Path) -> None:
    assert re.fullmatch(r"ktbench_moe-.*-cp\d+-cp\d+-manylinux_2_\d+_x86_64(\.manylinux\w+)*\.whl", wheel.name)
