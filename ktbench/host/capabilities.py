"""Capabilities of this machine, with the reason for each that is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ktbench.host.code import Extension, isa_reasons, load_extension
from ktbench.host.cuda import CudaDevices, Gpu, read_cuda_devices
from ktbench.host.software import TorchBuild, torch_build
from ktbench.host.topology import Topology, read_topology
from ktbench.spec.engine import STREAM_MEMORY
from ktbench.spec.features import BY_NAME, FEATURES, Feature

_OTHERS = ("numa", "cuda", "stream_memory")
_ISAS = tuple(dict.fromkeys(need for feature in FEATURES for need in feature.needs if need not in _OTHERS))
_ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<suffix>[a-z]?)")


def machine_capabilities() -> dict[str, str]:
    """Capability -> "" if this machine has it, else one line with what is missing and how to get it.

    The names are those that `Feature.needs` uses: avx512, amx, numa, cuda, and with a CUDA device stream_memory.
    """
    return capabilities_of(load_extension(), read_topology(), read_cuda_devices(), torch_build())


def capabilities_of(
    extension: Extension, topology: Topology, cuda: CudaDevices, torch: TorchBuild | None
) -> dict[str, str]:
    """The capabilities that follow from the parts; `torch` is the installed PyTorch, None without it."""
    isas = isa_reasons(extension)
    capabilities = {name: isas.get(name, extension.reason or f"the kernel extension has no {name}") for name in _ISAS}
    capabilities |= {"numa": _numa_reason(topology), "cuda": cuda.reason or _torch_reason(torch, cuda)}
    if capabilities["cuda"]:
        return capabilities
    lacks = f"the driver lacks {STREAM_MEMORY[-1]}, install one of CUDA 11.7 or newer"
    return {**capabilities, "stream_memory": "" if cuda.stream_memory else lacks}


def feature_reasons(capabilities: Mapping[str, str]) -> dict[str, str]:
    """Feature name -> "" if the machine can run it, else what it lacks, for every row of the feature table."""
    return {feature.name: _feature_reason(feature, capabilities) for feature in FEATURES}


def kernel_isas(extension: Extension) -> dict[str, dict[str, tuple[str, ...]]]:
    """Precision -> feature name -> the granted instruction sets with kernels for it; the fastest of them runs.

    Features without kernels are left out. Empty without the extension.
    """
    if extension.module is None:
        return {}
    isas, missing = extension.module.isas(), extension.module.grants()
    by_precision: dict[str, dict[str, tuple[str, ...]]] = {}
    for precision, row in extension.module.formats().items():
        features = by_precision.setdefault(precision, {})
        for isa in row["isas"]:
            feature = isas[isa]["feature"]
            if feature in BY_NAME and not missing[isa]:
                features[feature] = (*features.get(feature, ()), isa)
    return by_precision


def _feature_reason(feature: Feature, capabilities: Mapping[str, str]) -> str:
    missing = [why for need in feature.needs if (why := capabilities.get(need, ""))]
    carriers = [BY_NAME[name] for name in feature.requires]
    if carriers and all(_feature_reason(carrier, capabilities) for carrier in carriers):
        missing.append(f"needs {' or '.join(carrier.tag(True) for carrier in carriers)}, of which none can run here")
    return "; ".join(missing)


def _numa_reason(topology: Topology) -> str:
    if len(topology.domains) >= 2:
        return ""
    hidden = len(topology.nodes) - len(topology.domains)
    if hidden:
        return f"one NUMA node with usable cpus, {hidden} without (memory only, or kept away by taskset or a cpuset)"
    return (
        "one NUMA node: needs two or more sockets, or nodes within a socket (NPS, SNC) set in the firmware "
        "(engine.domains=2 makes logical ones)"
    )


def _torch_reason(torch: TorchBuild | None, cuda: CudaDevices) -> str:
    """A driver runs what was built for any minor version of a major one that it knows."""
    driver = cuda.driver
    if torch is None:
        return "torch is not installed: run python3 bootstrap.py"
    if torch.cuda is None:
        return f"torch {torch.version} is built without CUDA: install the torch of this GPU in a fresh environment"
    if driver is not None and driver[0] < int(torch.cuda.partition(".")[0]):
        runs = ".".join(map(str, driver))
        return (
            f"torch {torch.version} is built for CUDA {torch.cuda}, the driver runs CUDA up to {runs}: "
            f"update the driver, or install a torch for CUDA {driver[0]} in a fresh environment"
        )
    return "".join(_kernels_reason(torch, gpu) for gpu in cuda.gpus[:1])


def _kernels_reason(torch: TorchBuild, gpu: Gpu) -> str:
    """Why PyTorch has no kernels for its first device; empty if it has, or if this is unknown."""
    if gpu.capability is None or not torch.architectures:
        return ""
    if any(_runs(architecture, gpu.capability) for architecture in torch.architectures):
        return ""
    capability = ".".join(map(str, gpu.capability))
    return (
        f"torch {torch.version} is built for {', '.join(torch.architectures)}, {gpu.name} has compute capability "
        f"{capability}: install a torch that is built for it in a fresh environment"
    )


def _runs(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether a device runs code for an architecture (CUDA C++ Programming Guide, "Application Compatibility").

    `sm_86` is for 8.6 and later 8.x, `sm_90a` for 9.0 only; the driver translates `compute_90` for 9.0 and all later.
    """
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        return False
    built = int(match["major"]), int(match["minor"])
    if match["suffix"] == "a":
        return capability == built
    return capability >= built and (match["kind"] == "compute" or capability[0] == built[0])
