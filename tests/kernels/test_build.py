"""The kernels' build: which instruction sets it has, and modules that are kept by the content of their sources."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ktbench import _kernels

CMAKE = shutil.which("cmake")
FOLDER = Path(__file__).parents[2] / "kernels" / "cmake"
pytestmark = pytest.mark.skipif(CMAKE is None, reason="cmake is not installed: apt install cmake")


def cmake(folder: Path, script: str, **variables: object) -> subprocess.CompletedProcess[str]:
    """Carry out lines of CMake."""
    file = folder / "script.cmake"
    file.write_text(f"cmake_minimum_required(VERSION 3.20)\n{script}\n")
    words = [f"-D{name}={value}" for name, value in variables.items()]
    return subprocess.run([str(CMAKE), *words, "-P", file], capture_output=True, text=True, check=False)


def built_isas(folder: Path, asked: str) -> subprocess.CompletedProcess[str]:
    return cmake(folder, f"include({FOLDER}/isas.cmake)", KTBENCH_ISAS=asked, CMAKE_SYSTEM_PROCESSOR="x86_64")


def test_native_is_what_the_cpu_and_the_system_grant(tmp_path: Path) -> None:
    """CPUID and XCR0, which the extension asks, against /proc/cpuinfo, which the build reads."""
    said = re.search(r"Instruction sets: (.*)", built_isas(tmp_path, "native").stdout)
    assert said
    reasons = {isa: why for isa, why in _kernels.grants().items() if isa not in ("reference", "avx2", "amx_emulated")}
    lacking = {isa for isa, why in reasons.items() if why and "built without" not in why}
    assert set(filter(None, said[1].split(";"))) == reasons.keys() - lacking


def test_all_are_those_of_the_table(tmp_path: Path) -> None:
    said = re.search(r"Instruction sets: (.*)", built_isas(tmp_path, "all").stdout)
    assert said and {"reference", "avx2", *said[1].split(";")} == _kernels.grants().keys()


def test_an_unknown_instruction_set_is_refused(tmp_path: Path) -> None:
    done = built_isas(tmp_path, "native;sse9")
    assert done.returncode and "sse9" in done.stderr and "avx512_bf16" in done.stderr


class Kept:
    """A cache of built modules and sources of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sources, self.cache = folder, folder / "kernels", folder / "cache"
        self.sources.mkdir()
        (self.sources / "moe.cpp").write_text("int answer;")
        self.module = folder / "_kernels.so"
        self.module.write_bytes(b"compiled")

    def begin_build(self) -> None:
        """What a build does first: it writes the digest of its sources."""
        script = f'include({FOLDER}/digest.cmake)\ndigest_sources(id {self.sources} "gcc")\n'
        assert cmake(self.folder, f"{script}file(WRITE {self.folder}/build_id.cpp ${{id}})").returncode == 0

    def end_build(self) -> None:
        """What it does last: it keeps the module."""
        script = f"include({FOLDER}/keep.cmake)"
        done = cmake(
            self.folder, script, MODULE=self.module, SOURCES=self.sources, BUILD_ID_SOURCE=self.folder / "build_id.cpp",
            BUILD_ID_TOOLS="gcc", KTBENCH_KERNEL_CACHE=self.cache, KTBENCH_BUILT_ISAS="avx512;amx",
            PYTHON_MODULE_EXTENSION=".so",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def found(self, **changed: object) -> Path | None:
        """The module that a later build takes."""
        variables = {
            "CMAKE_CURRENT_SOURCE_DIR": self.sources, "BUILD_ID_TOOLS": "gcc", "KTBENCH_KERNEL_CACHE": self.cache,
            "KTBENCH_BUILT_ISAS": "avx512;amx", "PYTHON_MODULE_EXTENSION": ".so",
        } | changed  # fmt: skip
        lines = "\n".join(f"set({name} {value})" for name, value in variables.items())
        done = cmake(self.folder, f"include({FOLDER}/kept.cmake)\n{lines}\nfind_kept_module()")
        assert done.returncode == 0, done.stderr
        found = re.search(r"same sources: (.*)", done.stdout)
        return Path(found[1]) if found else None


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_a_module_is_found_by_its_sources_compiler_and_instruction_sets(kept: Kept) -> None:
    assert kept.found() is None
    kept.begin_build()
    kept.end_build()
    found = kept.found()
    assert found and found.read_bytes() == b"compiled"
    assert kept.found(BUILD_ID_TOOLS="clang") is None
    assert kept.found(KTBENCH_BUILT_ISAS="avx512") is None
    (kept.sources / "moe.cpp").write_text("int other;")
    assert kept.found() is None


def test_a_damaged_module_is_built_again(kept: Kept) -> None:
    kept.begin_build()
    kept.end_build()
    found = kept.found()
    assert found
    found.write_bytes(b"compile")
    assert kept.found() is None


def test_sources_that_change_during_a_build_are_not_kept_under_its_name(kept: Kept) -> None:
    kept.begin_build()
    (kept.sources / "moe.cpp").write_text("int later;")
    kept.end_build()
    assert kept.found() is None and not kept.cache.exists()


def test_a_cache_that_cannot_be_written_stops_no_build(kept: Kept) -> None:
    kept.begin_build()
    kept.cache.write_text("a file in its place")
    kept.end_build()
    assert kept.found() is None
