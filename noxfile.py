"""Sessions: tests, lint, types, kernels (sanitizers), bench, peers, gpu. `nox -l` lists them."""

from __future__ import annotations

import os
import sysconfig
import tempfile
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "none"  # the environment that bootstrap.py has set up holds everything


@nox.session
def tests(session: nox.Session) -> None:
    """Run the whole test suite."""
    session.run("python", "-m", "pytest", *session.posargs, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Hold formatting and lint rules."""
    session.run("ruff", "check", ".", external=True)
    session.run("ruff", "format", "--check", ".", external=True)


@nox.session
def types(session: nox.Session) -> None:
    """Hold the types."""
    session.run("mypy", external=True)


@nox.session
@nox.parametrize("sanitizer", ["address,undefined", "thread"])
def kernels(session: nox.Session, sanitizer: str) -> None:
    """Build the kernels' own tests under sanitizers and run them."""
    build = Path(tempfile.gettempdir()) / f"ktbench-kernels-{sanitizer.replace(',', '-')}-{os.getuid()}"
    options = [f"-DKTBENCH_SANITIZE={sanitizer}", "-DKTBENCH_BUILD_TESTS=ON", "-DKTBENCH_BUILD_MODULE=OFF"]
    options += ["-DCMAKE_CXX_FLAGS_RELEASE=-O1"]  # instrumented templates take minutes to optimise further
    session.run("cmake", "-S", "kernels", "-B", str(build), "-G", "Ninja", *options, external=True)
    session.run("cmake", "--build", str(build), external=True)
    session.run("ctest", "--test-dir", str(build), "--output-on-failure", external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Time the kernels with pytest-benchmark; never part of the tests."""
    collected = ["-o", "python_files=bench_*.py", "-o", "python_functions=bench_*"]
    words = ["tests/bench", *collected, "--timeout=0", *session.posargs]
    session.run("python", "-m", "pytest", *words, external=True)


@nox.session(venv_backend="virtualenv", reuse_venv=True)
def peers(session: nox.Session) -> None:
    """Hold the engine against other systems, in an environment of theirs; `-- --install-only` makes no more than that.

    It is `.nox/peers`, where ktbench looks for them. What is there already is not installed again.
    """
    packages = next(Path(session.virtualenv.location).glob("lib/python*/site-packages"))
    _append_ours(packages)
    session.log("llama.cpp is built from source the first time: about 10 minutes on 2 cores")
    session.install("llama-cpp-python", "gguf")
    # Its requirements would bring a CUDA build of torch; what its CPU kernels need is in our environment.
    session.install("--no-deps", "--only-binary=:all:", "kt-kernel", success_codes=[0, 1])
    if not (packages / "kt_kernel").is_dir():
        session.warn("no wheel of kt-kernel for this platform: its rows will be UNSUPPORTED, its tests skip")
    if session.posargs != ["--install-only"]:
        session.run("python", "-m", "pytest", "-m", "peers", *session.posargs)


def _append_ours(packages: Path) -> None:
    """The environment that runs nox has torch, transformers and ktbench: it comes last on the path of the peers'."""
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    lines = [f"import site; site.addsitedir({path!r})" for path in ours]
    (packages / "ktbench.pth").write_text("\n".join(lines) + "\n")


@nox.session
def gpu(session: nox.Session) -> None:
    """Run the tests that need a CUDA device; they skip with a reason where there is none."""
    session.run("python", "-m", "pytest", "-m", "gpu", *session.posargs, external=True)
