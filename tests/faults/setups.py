"""Set-ups by `bootstrap.py` that are killed: with the real venv and pip, on a small index of its own."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from random import Random

from tests.faults.findings import Finding

_ROOT = Path(__file__).parents[2]
# Not that of this environment, into which it would install.
_PYTHON = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
_FILES = 400  # of the package that stands for torch: unpacking takes a while
# A build backend in the checkout needs no package from anywhere; building takes a while, in a process of its own.
_BACKEND = """
import subprocess, sys, zipfile
def get_requires_for_build_editable(settings=None): return []
def build_editable(folder, settings=None, metadata=None):
    subprocess.run([sys.executable, "-c", "import time; time.sleep(0.5)"], check=True)
    from pathlib import Path
    name = "ktbench-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder, name), "w") as wheel:
        wheel.writestr("ktbench.pth", str(Path.cwd()))
        wheel.writestr("ktbench-0.1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: ktbench\\nVersion: 0.1.0\\nProvides-Extra: dev\\nRequires-Dist: helper\\n")
        wheel.writestr("ktbench-0.1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("ktbench-0.1.0.dist-info/RECORD", "")
    return name
"""  # noqa: E501


def make_checkout(folder: Path) -> Path:
    """A small checkout with the real `bootstrap.py`, and beside it the index that pip takes packages from."""
    root = folder / "checkout"
    (root / "kernels").mkdir(parents=True)
    (root / "kernels" / "moe.cpp").write_text("int answer;")
    shutil.copy(_ROOT / "bootstrap.py", root)
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "ktbench"\nversion = "0.1.0"\ndependencies = ["helper", "torch>=2.11"]\n'
    )
    (root / "backend.py").write_text(_BACKEND)
    _publish(folder, "torch", "2.13.0+cpu", _FILES)
    _publish(folder, "helper", "1.0", _FILES // 2)
    return root


def _publish(folder: Path, name: str, version: str, files: int) -> None:
    """A wheel with its metadata first, as it must not be taken for installed when that is there."""
    page = folder / "simple" / name
    page.mkdir(parents=True)
    info = f"{name}-{version}.dist-info"
    content = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **{f"{name}/part{number}.py": f"number = {number}\n" * 100 for number in range(files)},
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
    }
    wheel = page / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path, text in content.items():
            file.writestr(path, text)
        record = [f"{path},{_digest(text)},{len(text)}" for path, text in content.items()]
        file.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,\n"]))
    (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>\n')


def _digest(text: str) -> str:
    return f"sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()}"


def set_up(root: Path) -> subprocess.Popen[str]:
    """A set-up that has begun, in a session of its own."""
    environment: Mapping[str, str] = {
        "PATH": os.defpath,
        "HOME": str(root.parent),
        "PIP_INDEX_URL": (root.parent / "simple").as_uri(),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    return subprocess.Popen(
        [_PYTHON, "bootstrap.py", "true"],
        cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def is_whole(root: Path) -> bool:
    """Whether both packages are there with every file, and the checkout is installed."""
    check = (
        "import torch, helper, importlib.metadata as m, pathlib\n"
        f"for name, count in (('torch', {_FILES}), ('helper', {_FILES // 2})):\n"
        "    files = m.distribution(name).files\n"
        "    assert len(files) > count and all(pathlib.Path(f.locate()).is_file() for f in files), name\n"
        "    for number in range(count): __import__(f'{name}.part{number}')\n"
        "assert m.version('ktbench') == '0.1.0'\n"
    )
    python = root / ".venv" / "bin" / "python"
    done = subprocess.run([python, "-c", check], capture_output=True, text=True, check=False)
    return done.returncode == 0 and subprocess.run([python, "-m", "pip", "check"], check=False).returncode == 0


def killed_set_ups(folder: Path, random: Random, kills: int, until: float = math.inf) -> Finding:
    """SIGKILL of `bootstrap.py` alone at moments spread over the time that it takes, until it is done."""
    root = make_checkout(folder)
    began_s = time.monotonic()
    _, said = (first := set_up(root)).communicate()
    assert first.returncode == 0 and is_whole(root), said
    took_s = time.monotonic() - began_s
    done, broken, rounds = 0, 0, 0
    while done < kills and time.monotonic() < until:
        shutil.rmtree(root / ".venv")
        rounds += 1
        for _ in range(random.randrange(1, 4)):
            setting_up = set_up(root)
            time.sleep(random.uniform(0, took_s))
            setting_up.send_signal(signal.SIGKILL)
            setting_up.communicate()
            done += setting_up.returncode == -signal.SIGKILL
        _, said = (last := set_up(root)).communicate()
        broken += last.returncode != 0 or not is_whole(root) or "Traceback" in said
    return Finding(
        fault="SIGKILL of a set-up (bootstrap.py)",
        times=done,
        happened=f"{rounds} environments set up again until they were done: {broken} broken; every package is whole",
        message="",
        lost=broken,
        doubled=None,
    )
