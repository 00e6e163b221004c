"""The set-up script decides right on every kind of machine; programs are fakes that keep a diary."""

from __future__ import annotations

import ast
import io
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

import bootstrap
from bootstrap import Host, Needs, Setup, SetupError, needs_of
from tests.faults.setups import killed_set_ups
from tests.full_disk import files_up_to

ROOT = Path(bootstrap.__file__).parent


@dataclass
class Programs:
    """Stands for every program: remembers the commands, fails those that contain one of `failing`."""

    failing: tuple[str, ...] = ()
    offered: str = "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0, 2.12.1"
    torch: str = ""
    compiler: str = "g++ (Debian 12.2.0-14+deb12u1) 12.2.0"
    commands: list[str] = field(default_factory=list)

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        line = " ".join(command)
        self.commands.append(line)
        failed = any(part in line for part in self.failing)
        return subprocess.CompletedProcess(list(command), int(failed), self._answer(line, failed), "a wheel broke\n")

    def _answer(self, line: str, failed: bool) -> str:
        *_, last = line.split()
        if " venv " in line and not failed:
            python = Path(last) / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            for made in (python, python.with_name("activate")):
                made.touch()
        if "install" in line and last.startswith("torch") and not failed:
            self.torch = "2.13.0+cpu" if "cpu" in line else "2.15.0"
        if "m.version('torch')" in line:
            return f"{self.torch}\n"
        if line.startswith("g++"):
            return f"{self.compiler}\n"
        return self.offered if "index versions" in line else ""

    def ran(self, *parts: str) -> bool:
        """Whether some command held all the parts."""
        return any(all(part in command for part in parts) for command in self.commands)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with a kernel source."""
    root = tmp_path / "checkout"
    (root / "kernels").mkdir(parents=True)
    (root / "kernels" / "moe.cpp").write_text("int answer;")
    (root / "pyproject.toml").write_text(
        '[project]\nname = "bench"\ndependencies = ["numpy>=1", "torch>=2.11"]\n'
        '[project.optional-dependencies]\naccuracy = ["lm-eval"]\ntest = ["bench[accuracy]", "pytest>=8"]\n'
        'dev = ["bench[test]", "nox"]\n'
    )
    return root


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A system Python on a machine with a compiler and no GPU."""
    usr = tmp_path / "usr"
    usr.mkdir()
    return Host(
        prefix=usr,
        base_prefix=usr,
        executable="/usr/bin/python3",
        base_executable="/usr/bin/python3",
        compiler="g++",
        has_gpu=False,
    )


def in_venv(host: Host, tmp_path: Path) -> Host:
    venv = tmp_path / "mine"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    return replace(host, prefix=venv, executable=str(venv / "bin" / "python"))


def test_without_an_environment_one_is_made_beside_the_file(host: Host, root: Path) -> None:
    programs = Programs()
    Setup(host, programs, root).bring_up_to_date(Needs())
    assert programs.ran("/usr/bin/python3 -m venv", str(root / ".venv"))
    assert programs.ran(
        f"{root}/.venv/bin/python -m pip install", "--no-deps", "KTBENCH_ISAS=native", f"--editable {root}"
    )
    assert not programs.ran("/usr/bin/python3 -m pip")


def test_an_active_environment_is_used(host: Host, root: Path, tmp_path: Path) -> None:
    programs = Programs()
    active = in_venv(host, tmp_path)
    Setup(active, programs, root).bring_up_to_date(Needs())
    assert not programs.ran("-m venv")
    assert programs.ran(f"{active.executable} -m pip install", "--editable")
    assert not (root / ".venv").exists()


@pytest.mark.parametrize(("base", "used"), [(False, True), (True, False)])
def test_a_conda_environment_is_used_but_not_its_base(host: Host, root: Path, base: bool, used: bool) -> None:
    (host.prefix / "conda-meta").mkdir()
    if base:
        (host.prefix / "condabin").mkdir()
    assert Setup(host, Programs(), root).active is used


def test_without_ensurepip_the_systems_pip_works_inside(host: Host, root: Path) -> None:
    programs = Programs(failing=("-m pip --version", "-m ensurepip"))
    Setup(host, programs, root).bring_up_to_date(Needs())
    assert programs.ran(f"/usr/bin/python3 -m pip --python {root}/.venv/bin/python install", "pip")


def test_without_any_pip_one_line_says_what_to_install(host: Host, root: Path) -> None:
    programs = Programs(failing=("-m pip --version", "-m ensurepip", "-m pip --python"))
    with pytest.raises(SetupError, match=r"^bootstrap: .*apt install python3-venv$"):
        Setup(host, programs, root).bring_up_to_date(Needs())


def test_a_python_without_venv_is_named(host: Host, root: Path) -> None:
    with pytest.raises(SetupError, match="apt install python3-venv"):
        Setup(host, Programs(failing=("-m venv",)), root).bring_up_to_date(Needs())


def test_a_missing_compiler_is_named_before_anything_is_done(host: Host, root: Path) -> None:
    programs = Programs()
    with pytest.raises(SetupError, match=r"apt install g\+\+"):
        Setup(replace(host, compiler=""), programs, root).bring_up_to_date(Needs())
    assert programs.commands == []


def test_gpu_takes_the_torch_that_its_driver_runs_in_the_projects_range(host: Host, root: Path) -> None:
    """uv knows which driver runs which of PyTorch's builds; pip would take the newest."""
    programs = Programs()
    Setup(replace(host, has_gpu=True), programs, root).bring_up_to_date(Needs())
    assert programs.ran("-m uv pip install", "--torch-backend=auto", "torch>=2.11")
    assert not programs.ran("cpu")


def test_no_gpu_takes_the_cpu_build_that_pip_offers(host: Host, root: Path) -> None:
    programs = Programs(offered="torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0+cpu, 2.13.0")
    Setup(host, programs, root).bring_up_to_date(Needs())
    assert programs.ran("-m pip install", "torch==2.13.0+cpu")
    assert not programs.ran("-m uv")


@pytest.mark.parametrize("failing", [(), ("index versions",)])
def test_no_gpu_and_no_cpu_build_goes_through_uv(host: Host, root: Path, failing: tuple[str, ...]) -> None:
    programs = Programs(failing=failing)
    Setup(host, programs, root).bring_up_to_date(Needs())
    assert programs.ran("-m uv pip install", "--torch-backend=cpu", "torch==2.13.0")
    assert not programs.ran("-m pip install --quiet torch==")


def test_an_installed_torch_is_kept_and_pinned(host: Host, root: Path) -> None:
    programs = Programs(torch="2.9.1+cu130")
    Setup(host, programs, root).bring_up_to_date(Needs())
    assert not programs.ran("index versions")
    assert (root / ".venv" / "ktbench-constraints.txt").read_text() == "torch==2.9.1+cu130\n"
    assert programs.ran("--constraint", "ktbench-constraints.txt", "numpy>=1")


def test_a_failing_install_shows_the_end_of_its_output_and_leaves_no_stamp(host: Host, root: Path) -> None:
    setup = Setup(host, Programs(failing=("--editable",)), root)
    with pytest.raises(SetupError, match=r"a wheel broke\nbootstrap: installing kernels failed"):
        setup.bring_up_to_date(Needs())
    assert not setup.stamp.exists()


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("python -m ktbench sweep +ablation=decode", Needs()),
        ("ktbench sweep +ablation=decode", Needs()),
        ("python3.12 -m ktbench sweep +ablation=decode machine=paper_a100", Needs(engine=False)),
        ("ktbench advise cpu=here model=tiny", Needs(engine=False)),
        ("/opt/env/bin/ktbench plan +ablation=decode", Needs(engine=False)),
        ("ktbench eval +suite=nano", Needs(extras=("accuracy",))),
        ("ktbench serve model=nano", Needs(extras=("serve",))),
        ("python -m pytest -q", Needs(extras=("dev",), isas="native;amx_emulated")),
        ("nox -s lint", Needs(extras=("dev",), isas="native;amx_emulated")),
        ("python own_script.py", Needs()),
        ("", Needs()),
    ],
)
def test_what_a_command_needs(command: str, needs: Needs) -> None:
    assert needs_of(command.split()) == needs


def test_options_add_to_what_a_command_needs() -> None:
    project = bootstrap.Project("bench", (), {"train": (), "serve": ()})
    options, command = bootstrap.options_of(["--extras=train,serve", "--isas=all", "ktbench", "serve", "--json"])
    assert command == ["ktbench", "serve", "--json"]
    assert bootstrap.asked_for(options, command, project) == Needs(extras=("serve", "train"), isas="all")
    for words in (["--extras=magic"], ["--isas=sse"]):
        with pytest.raises(SetupError, match="allowed are"):
            bootstrap.asked_for(bootstrap.options_of(words)[0], (), project)


def test_what_measures_nothing_waits_for_neither_torch_nor_the_compiler(host: Host, root: Path) -> None:
    programs = Programs()
    Setup(replace(host, compiler=""), programs, root).bring_up_to_date(Needs(engine=False))
    assert programs.ran("-m pip install", "numpy>=1") and programs.ran("-Cwheel.cmake=false", f"--editable {root}")
    assert not programs.ran("torch==") and not programs.ran("KTBENCH_ISAS")
    Setup(host, engine := Programs(), root).bring_up_to_date(Needs())
    assert engine.ran("torch==") and engine.ran("KTBENCH_ISAS=native", "--editable")
    Setup(host, after := Programs(), root).bring_up_to_date(Needs(engine=False))
    assert after.commands == []


def test_packages_of_tests_come_with_tests_alone_and_stay(host: Host, root: Path) -> None:
    Setup(host, first := Programs(), root).bring_up_to_date(Needs())
    assert not first.ran("pytest>=8")
    Setup(host, tests := Programs(torch="2.13.0+cpu"), root).bring_up_to_date(
        Needs(extras=("dev",), isas="native;amx_emulated")
    )
    assert tests.ran("-m pip install", "torch>=2.11", "lm-eval", "pytest>=8", "nox") and not tests.ran("bench[")
    assert tests.ran("KTBENCH_ISAS=native;amx_emulated")
    Setup(host, again := Programs(), root).bring_up_to_date(Needs())
    assert again.commands == []


@pytest.mark.parametrize(
    "version",
    ["g++ (GCC) 8.5.0 20210514 (Red Hat 8.5.0-4)", "Debian clang version 13.0.1", "g++ (Debian 10.2.1-6) 10.2.1"],
)
def test_an_old_compiler_is_named_before_anything_is_done(host: Host, root: Path, version: str) -> None:
    programs = Programs(compiler=version)
    with pytest.raises(SetupError, match="or newer"):
        Setup(host, programs, root).bring_up_to_date(Needs())
    assert programs.commands == ["g++ --version"]


def test_a_full_disk_is_said_before_anything_is_done(host: Host, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**8))
    programs = Programs()
    with pytest.raises(SetupError, match=r"0\.1 GB of disk left"):
        Setup(host, programs, root).bring_up_to_date(Needs())
    assert not programs.ran("install") and not (root / ".venv").exists()


@pytest.mark.parametrize(
    ("output", "remedy"),
    [
        ("OSError: [Errno 28] No space left on device", "make room"),
        ("NewConnectionError: Failed to establish a new connection", "check the network"),
        ("ERROR: Could not install packages: [Errno 13] Permission denied: '/x'", "not writable"),
        ("error: something else", "pip install"),
    ],
)
def test_a_failure_says_what_to_do(output: str, remedy: str) -> None:
    assert remedy in bootstrap._failure("packages", ["pip", "install"], output)


def test_where_one_installer_fails_the_others_end(root: Path) -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    ended: list[int] = []

    def fail() -> None:
        raise SetupError("packages broke")

    def wait() -> None:
        ended.append(subprocess.run(sleeping, env={**os.environ, bootstrap.TAG: str(root)}, check=False).returncode)

    with pytest.raises(SetupError, match="packages broke"):
        Setup(bootstrap.this_host(), root=root)._side_by_side({"kernels": wait, "packages": fail})
    assert ended == [-9]


def test_a_second_time_nothing_is_started(host: Host, root: Path) -> None:
    Setup(host, Programs(), root).bring_up_to_date(Needs())
    programs = Programs()
    Setup(host, programs, root).bring_up_to_date(Needs())
    assert programs.commands == []


@pytest.mark.parametrize("changed", ["pyproject.toml", "kernels/moe.cpp", "kernels/new.cpp"])
def test_changed_sources_are_built_again(host: Host, root: Path, changed: str) -> None:
    Setup(host, Programs(), root).bring_up_to_date(Needs())
    with (root / changed).open("a") as file:
        file.write("\n#")
    programs = Programs(torch="2.13.0+cpu")
    Setup(host, programs, root).bring_up_to_date(Needs())
    assert programs.ran("--editable")
    assert not programs.ran("-m venv")


def test_another_cpu_gets_kernels_of_its_own(host: Host, root: Path) -> None:
    Setup(replace(host, isa_flags="avx2"), Programs(), root).bring_up_to_date(Needs())
    programs = Programs(torch="2.13.0+cpu")
    Setup(replace(host, isa_flags="avx2 avx512f"), programs, root).bring_up_to_date(Needs())
    assert programs.ran("KTBENCH_ISAS=native", "--editable") and not programs.ran("numpy>=1")


def test_a_broken_environment_is_made_again(host: Host, root: Path) -> None:
    Setup(host, Programs(), root).bring_up_to_date(Needs())
    (root / ".venv" / "bin" / "python").unlink()
    programs = Programs()
    Setup(host, programs, root).bring_up_to_date(Needs())
    assert programs.ran("-m venv --clear")


def test_the_command_finds_the_environments_programs_first(host: Host, root: Path) -> None:
    variables = bootstrap.child_environment(Setup(host, Programs(), root))
    assert variables["PATH"].split(os.pathsep)[0] == str(root / ".venv" / "bin")
    assert variables["VIRTUAL_ENV"] == str(root / ".venv")


def test_the_command_replaces_this_process(host: Host, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execve", lambda program, words, _: calls.append((program, words)))
    program = root / ".venv" / "bin" / "report"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    bootstrap.become(Setup(host, Programs(), root), ["report", "RUN", "md"])
    assert calls == [(str(program), ["report", "RUN", "md"])]


def test_an_unknown_command_is_one_line(host: Host, root: Path) -> None:
    with pytest.raises(SetupError, match=r"^bootstrap: no-such-verb: no such command"):
        bootstrap.become(Setup(host, Programs(), root), ["no-such-verb"])


def test_without_a_command_it_says_how_to_enter(host: Host, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bootstrap.become(Setup(host, Programs(), root), []) == 0
    assert f"source {root}/.venv/bin/activate" in capsys.readouterr().err


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--no-such", 2)])
def test_options_are_answered_before_anything_is_done(argument: str, code: int) -> None:
    command = [sys.executable, ROOT / "bootstrap.py", argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert bootstrap.USAGE in (done.stdout if code == 0 else done.stderr) and "setting up" not in done.stderr


def test_an_old_python_can_still_read_the_file() -> None:
    ast.parse((ROOT / "bootstrap.py").read_text(), feature_version=(3, 7))


def test_no_host_is_named() -> None:
    assert "://" not in (ROOT / "bootstrap.py").read_text()


def test_a_set_up_that_was_killed_is_mended(host: Host, root: Path) -> None:
    """Packages that it had installed completely stay, those that were incomplete before are not judged."""
    setup = Setup(host, Programs(), root)
    site = setup.prefix / "lib" / "python3.11" / "site-packages"
    for name, files in (("torch-2.dist-info", ("METADATA", "RECORD")), ("numpy-2.dist-info", ("INSTALLER", "RECORD"))):
        (site / name).mkdir(parents=True)
        for file in files:
            (site / name / file).touch()
    os.utime(site / "torch-2.dist-info", (1e9, 1e9))  # as where the clock was set back while it was installed
    setup.journal.parent.mkdir()
    setup.journal.write_text(f"incomplete before:\n{site / 'old-1.dist-info'}\n")
    (site / "old-1.dist-info").mkdir()
    setup.bring_up_to_date(Needs())
    assert sorted(path.name for path in site.iterdir()) == ["numpy-2.dist-info", "old-1.dist-info"]
    assert setup.journal.read_text() == ""


def test_two_set_ups_are_not_mixed(host: Host, root: Path) -> None:
    setup = Setup(host, Programs(), root)
    with setup._alone(), pytest.raises(SetupError, match="another set-up is at work in"):
        setup.bring_up_to_date(Needs())
    setup.bring_up_to_date(Needs())


def test_a_full_disk_is_said_in_one_line(
    host: Host, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "Setup", lambda _: Setup(host, Programs(), root))
    with files_up_to(10):
        assert bootstrap.main([]) == 2
    journal = root / "build" / "ktbench-bootstrap.lock"
    assert [line for line in capsys.readouterr().err.splitlines() if str(journal) in line and "too large" in line]
    assert bootstrap.main([]) == 0


def test_what_a_killed_set_up_left_running_is_ended_and_nothing_else(root: Path) -> None:
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    ours, others = (
        subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, bootstrap.TAG: str(of)})
        for of in (root, root / "other")
    )
    for one in (ours, others):
        assert one.stdout and one.stdout.readline()
    bootstrap.end_programs_of(root)
    assert ours.wait(10) == -9 and others.poll() is None
    others.kill()
    for one in (ours, others):
        one.communicate()


@pytest.mark.thorough
def test_killed_set_ups_end_well_in_the_end(tmp_path: Path) -> None:
    """With the real pip; `nox -s faults` kills more of them."""
    found = killed_set_ups(tmp_path, Random(3), 1)
    assert found.holds, found


def test_what_takes_long_is_shown_with_its_time(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "_EVERY_S", {True: 0.001, False: 0.001})
    said = threading.Event()
    with bootstrap.progress(lambda: said.set() or "building, 3 of 4"):
        assert said.wait(10)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert set(lines) == {"bootstrap: 0:00 building, 3 of 4"}


def test_on_a_terminal_the_line_is_replaced_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(bootstrap, "_EVERY_S", {True: 0.001, False: 0.001})
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    said = threading.Event()
    with bootstrap.progress(lambda: said.set() or ""):
        assert said.wait(10)
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_files_of_a_build_are_counted(tmp_path: Path) -> None:
    build = tmp_path / "cp311"
    build.mkdir()
    count = bootstrap.Compiled(tmp_path, 1e9)
    assert count() == ""
    rules = [f"build {name}.o: CXX_COMPILER__kernels ../{name}.cpp" for name in ("a", "b", "c")]
    (build / "build.ninja").write_text("\n".join([*rules, "build all: phony", ""]))
    for name, seconds in (("a", 2e9), ("b", 0.5e9)):
        (build / f"{name}.o").touch()
        os.utime(build / f"{name}.o", (seconds, seconds))
    assert count() == ", 1 of at most 3 files compiled"
