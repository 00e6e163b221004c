"""Grants follow from extension, topology, driver and torch; every refusal says why."""

# ruff: noqa: N802 - the driver names its calls

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ktbench.host.capabilities import capabilities_of, feature_reasons, kernel_isas, machine_capabilities
from ktbench.host.code import Extension
from ktbench.host.cuda import CudaDevices, Gpu, read_cuda_devices
from ktbench.host.software import TorchBuild, torch_build
from ktbench.host.topology import read_topology
from ktbench.spec.features import FEATURES

H200 = CudaDevices(gpus=(Gpu(name="NVIDIA H200", memory_bytes=2**37),))
FOR_CUDA, FOR_CPU = TorchBuild(version="2.13.0", cuda="13.0"), TorchBuild(version="2.13.0+cpu", cuda=None)
NO_GPU = CudaDevices(gpus=(), reason="no CUDA device: libcuda is not installed")
ALL = {name: "" for feature in FEATURES for name in feature.needs}


def extension(**reasons: str) -> Extension:
    module = ModuleType("_kernels")
    module.grants = lambda: {"reference": "", **reasons}  # type: ignore[attr-defined]
    return Extension(module=module)


def test_a_machine_that_grants_all(two_sockets: Path) -> None:
    grants = capabilities_of(
        extension(avx2="", avx512="", amx=""),
        read_topology(two_sockets, range(7)),
        replace(H200, stream_memory=True),
        FOR_CUDA,
    )
    assert grants == {"avx2": "", "avx512": "", "amx": "", "numa": "", "cuda": "", "stream_memory": ""}
    assert set(feature_reasons(grants).values()) == {""}


def test_v_needs_no_more_than_base_avx512(two_sockets: Path) -> None:
    kernels = extension(avx512="", avx512_vnni="the CPU has no avx512_vnni", avx512_bf16="no", amx="no amx")
    reasons = feature_reasons(capabilities_of(kernels, read_topology(two_sockets, range(7)), H200, FOR_CUDA))
    assert (reasons["avx512"], reasons["amx"], reasons["dynamic"]) == ("", "no amx", "")


def test_every_refusal_has_a_reason(two_sockets: Path) -> None:
    kernels = extension(avx512="", amx="the CPU has no amx_tile")
    grants = capabilities_of(kernels, read_topology(two_sockets, {0, 1}), NO_GPU, FOR_CPU)
    assert grants["avx512"] == ""
    assert grants["amx"] == "the CPU has no amx_tile"
    assert grants["numa"].startswith("one NUMA node with usable cpus, 1 without")
    assert grants["cuda"] == NO_GPU.reason


def test_without_the_extension_the_reason_says_what_to_do(tmp_path: Path) -> None:
    missing = Extension(module=None, reason="the kernel extension is not built: run pip install -e .")
    grants = capabilities_of(missing, read_topology(tmp_path, {0}), NO_GPU, None)
    assert grants["avx512"] == grants["amx"] == missing.reason
    assert grants["numa"].startswith("one NUMA node:")


@pytest.mark.parametrize(
    ("torch", "said"),
    [(FOR_CPU, "built without CUDA"), (None, "torch is not installed")],
)
def test_a_gpu_needs_a_torch_that_can_use_it(tmp_path: Path, torch: TorchBuild | None, said: str) -> None:
    assert said in capabilities_of(extension(), read_topology(tmp_path, {0}), H200, torch)["cuda"]


@pytest.mark.parametrize(
    ("driver", "cuda", "runs"),
    [
        ((13, 0), "13.0", True),
        ((13, 1), "13.0", True),
        ((13, 0), "12.8", True),
        ((12, 4), "12.8", True),  # minor versions are compatible
        ((12, 8), "13.0", False),
        ((11, 8), "12.6", False),
        (None, "13.0", True),  # nothing is known against it
    ],
)
def test_the_driver_must_run_what_torch_is_built_for(
    tmp_path: Path, driver: tuple[int, int] | None, cuda: str, runs: bool
) -> None:
    build = TorchBuild(version="2.13.0", cuda=cuda)
    reason = capabilities_of(extension(), read_topology(tmp_path, {0}), replace(H200, driver=driver), build)["cuda"]
    assert (reason == "") == runs
    assert runs or cuda in reason


# As PyTorch's wheels have them, and what else CUDA's compiler can make.
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
TRANSLATED = ("sm_80", "compute_90")


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((7, 5), CU130, True),
        ((8, 9), CU130, True),  # binaries run on later minor versions
        ((9, 0), CU130, True),
        ((12, 1), CU130, True),
        ((6, 1), CU130, False),
        ((7, 0), CU130, False),  # and not on earlier ones
        ((11, 0), CU130, False),
        ((12, 0), TRANSLATED, True),
        ((8, 6), TRANSLATED, True),
        ((7, 5), TRANSLATED, False),
        ((9, 0), ("sm_90a",), True),
        ((10, 0), ("sm_90a", "sm_100a"), True),
        ((10, 3), ("sm_100a",), False),  # made for one version alone
        ((10, 3), ("sm_100f",), True),  # for its family
        (None, CU130, True),  # nothing is known against it
        ((6, 1), (), True),
    ],
)
def test_torch_must_have_kernels_for_the_gpu(
    tmp_path: Path, capability: tuple[int, int] | None, architectures: tuple[str, ...], runs: bool
) -> None:
    gpu = replace(H200.gpus[0], capability=capability)
    build = replace(FOR_CUDA, architectures=architectures)
    topology = read_topology(tmp_path, {0})
    reason = capabilities_of(extension(), topology, replace(H200, gpus=(gpu,)), build)["cuda"]
    assert (reason == "") == runs
    if capability is not None and not runs:
        assert gpu.name in reason and ".".join(map(str, capability)) in reason and architectures[0] in reason
        assert "\n" not in reason


def test_pytorchs_first_gpu_counts(tmp_path: Path) -> None:
    new, old = (Gpu(name=name, memory_bytes=1, capability=(major, 0)) for name, major in (("new", 9), ("old", 6)))
    build, topology = replace(FOR_CUDA, architectures=CU130), read_topology(tmp_path, {0})
    for gpus, runs in (((new, old), True), ((old, new), False)):
        assert (capabilities_of(extension(), topology, CudaDevices(gpus=gpus), build)["cuda"] == "") == runs


@pytest.mark.parametrize(
    ("held", "architectures"),
    [
        (b"\x7fELF sm_10\0sm_75 sm_90a compute_120\0invalid argument\0", ("sm_75", "sm_90a", "compute_120")),
        (b"\x7fELF\0sm_90\0", ("sm_90",)),
        (b"\x7fELF\0sm_90 or later\0", ()),
        (b"", ()),
        (None, ()),
    ],
)
def test_what_torch_has_kernels_for_is_read_from_its_bindings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bytes | None, architectures: tuple[str, ...]
) -> None:
    build = installed(tmp_path, monkeypatch, "cuda = '13.0'", held)
    assert build == TorchBuild(version=build.version, cuda="13.0", architectures=architectures)
    assert installed(tmp_path, monkeypatch, "cuda = None", held).architectures == ()


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, bindings: bytes | None = None) -> TorchBuild:
    """The build of a torch that has this line in its version, and such bindings."""
    package = folder / "torch"
    (package / "lib").mkdir(parents=True, exist_ok=True)
    (package / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\n")
    (package / "__init__.py").write_text("raise AssertionError")
    if bindings is not None:
        (package / "lib" / "libtorch_python.so").write_bytes(bindings)
    spec = importlib.util.spec_from_file_location("torch", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    build = torch_build()
    assert build is not None
    return build


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("cuda: Optional[str] = '12.8'", "12.8"),
        ('cuda = "13.0"', "13.0"),
        ("cuda: Optional[str] = None", None),
        ("hip = '6.4'", None),
    ],
)
def test_what_torch_is_built_for_is_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, cuda: str | None
) -> None:
    assert installed(tmp_path, monkeypatch, line).cuda == cuda


def test_kernels_run_on_the_granted_instruction_sets() -> None:
    missing = extension(avx2="", avx512="", avx512_vnni="", avx512_bf16="no avx512_bf16", amx="no amx_tile")
    features = {"avx512": "avx512", "avx512_vnni": "avx512", "avx512_bf16": "avx512", "amx": "amx", "avx2": "avx2"}
    isas = {"reference": None, **features}
    missing.module.isas = lambda: {isa: {"feature": feature} for isa, feature in isas.items()}  # type: ignore[union-attr]
    missing.module.formats = lambda: {  # type: ignore[union-attr]
        "bf16": {"isas": ["reference", "avx2", "avx512", "avx512_bf16", "amx"]},
        "int8": {"isas": ["reference", "avx512", "avx512_vnni", "amx"]},
        "future": {"isas": ["reference"]},
    }
    assert kernel_isas(missing) == {
        "bf16": {"avx2": ("avx2",), "avx512": ("avx512",)},
        "int8": {"avx512": ("avx512", "avx512_vnni")},
        "future": {},
    }
    assert kernel_isas(Extension(module=None, reason="not built")) == {}


def test_every_need_in_the_feature_table_is_a_grant() -> None:
    assert set(ALL) - {"stream_memory"} <= set(machine_capabilities())  # which a CUDA device is asked for


def test_a_feature_lacks_what_it_needs_and_what_it_rides_on() -> None:
    reasons = feature_reasons(ALL | {"avx2": "no avx2", "avx512": "no avx512", "amx": "no amx", "numa": "one node"})
    assert reasons["avx512"] == "no avx512"
    assert reasons["dynamic"] == "needs +a or +v or +m, of which none can run here"
    assert reasons["numa"] == "one node; needs +a or +v or +m, of which none can run here"
    assert reasons["deferral"] == ""


def test_one_kernel_is_enough_to_ride_on() -> None:
    assert feature_reasons(ALL | {"amx": "no amx"})["dynamic"] == ""


class Driver:
    """Stands for libcuda: so many devices, or a call that fails with code 100."""

    def __init__(self, failing: str = "", devices: int = 2) -> None:
        self.failing, self.devices = failing, devices

    def _code(self, call: str) -> int:
        return 100 if call == self.failing else 0

    def cuInit(self, flags: int) -> int:
        return self._code("cuInit")

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.devices
        return self._code("cuDeviceGetCount")

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return self._code("cuDeviceGet")

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = b"GPU"
        return self._code("cuDeviceGetName")

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:
        memory._obj.value = 1024
        return self._code("cuDeviceTotalMem_v2")

    def cuDeviceGetPCIBusId(self, bus_id: Any, size: int, device: Any) -> int:
        bus_id.value = b"0000:3B:00.0"
        return self._code("cuDeviceGetPCIBusId")

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = {75: 9, 76: 0}[attribute]
        return self._code("cuDeviceGetAttribute")

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 12080
        return self._code("cuDriverGetVersion")

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"no CUDA-capable device is detected"
        return 0


def test_the_driver_lists_its_devices() -> None:
    found = read_cuda_devices(lambda _: Driver())
    assert found.gpus == (Gpu(name="GPU", memory_bytes=1024, bus_id="0000:3B:00.0", capability=(9, 0)),) * 2
    assert found.driver == (12, 8)
    assert read_cuda_devices(lambda _: Driver(failing="cuDriverGetVersion")).driver is None


def test_stream_memory_operations_are_looked_for() -> None:
    class Newer(Driver):
        def cuStreamWriteValue32_v2(self) -> None: ...

        def cuStreamWaitValue32_v2(self) -> None: ...

    assert read_cuda_devices(lambda _: Newer()).stream_memory
    assert not read_cuda_devices(lambda _: Driver()).stream_memory


def test_no_driver_no_device_and_a_failing_driver_are_three_reasons() -> None:
    def absent(name: str) -> ctypes.CDLL:
        raise OSError(name)

    assert "libcuda is not installed" in read_cuda_devices(absent).reason
    assert "the driver lists none" in read_cuda_devices(lambda _: Driver(devices=0)).reason
    failed = read_cuda_devices(lambda _: Driver(failing="cuInit"))
    assert failed.gpus == ()
    assert "cuInit: no CUDA-capable device is detected (code 100)" in failed.reason
