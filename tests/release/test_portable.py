"""The check that a wheel is built under finds vector code which any CPU could come to run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "kernels" / "cmake" / "portable.cmake"
PROGRAMS = ("cmake", "g++", "nm", "objdump", "grep")
LEAF = "namespace { float twice(float x) { return x + x; } }\nfloat kernel(float x) { return twice(x); }\n"
WEAK = """
template <class T> [[gnu::noinline]] T twice(T x) { return x + x; }
float kernel(float x) { return twice(x); }
"""
INITIALISER = "float one(); float kept = one() * 3;\n"
GUARDED = '[[gnu::target("avx2")]] void wide(float* x) { for (int i = 0; i < 8; ++i) x[i] += 1; }\n'

pytestmark = pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}")


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """A folder of objects: each source with and without AVX2."""
    for name, source in {"leaf": LEAF, "weak": WEAK, "initialiser": INITIALISER, "guarded": GUARDED}.items():
        (tmp_path / f"{name}.cpp").write_text(source)
        for kind, flags in {"isa": ["-mavx2"], "any": []}.items():
            words = ["g++", "-c", "-O3", "-march=x86-64", *flags, f"{name}.cpp", "-o", f"{name}.{kind}.o"]
            subprocess.run(words, cwd=tmp_path, check=True)
    return tmp_path


def check(folder: Path, isa: str, others: str) -> subprocess.CompletedProcess[str]:
    """Run the script on objects named by stem."""
    lists = [f"-DISA_OBJECTS={isa}", f"-DOBJECTS={others}", "-DNM=nm", "-DOBJDUMP=objdump"]
    return subprocess.run(["cmake", *lists, "-P", str(SCRIPT)], cwd=folder, capture_output=True, text=True, check=False)


def test_vector_code_is_kept_to_functions_nobody_else_can_come_to_call(compiled: Path) -> None:
    good = check(compiled, "leaf.isa.o", "leaf.any.o;weak.any.o;initialiser.any.o;cmake_pch.hxx.gch")
    assert good.returncode == 0, good.stderr
    for isa, others, says in (
        ("leaf.isa.o;weak.isa.o", "", ("weak.isa.o", "a weak function", "twice<float>")),
        ("initialiser.isa.o", "", ("initialiser.isa.o", "an initialiser")),
        ("", "leaf.any.o;leaf.isa.o", ("leaf.isa.o", "vector instructions outside")),
        ("", "guarded.any.o", ("guarded.any.o", "vector instructions outside")),
        ("missing.o", "", ("missing.o", "cannot be inspected")),
    ):
        refused = check(compiled, isa, others)
        assert refused.returncode != 0
        assert all(words in " ".join(refused.stderr.split()) for words in says), refused.stderr
