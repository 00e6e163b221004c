"""Fiddler's scheme: each expert of a call runs on the host or, its weights copied there, on the device.

Kamahori et al., Fiddler: CPU-GPU Orchestration for Fast Inference of Mixture-of-Experts Models, ICLR 2025.
Letters: T tokens of a call, k experts of a token, P pairs of the two, H hidden width.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import linear

from ktbench.engine.backend import ExpertsBackend
from ktbench.engine.cuda.stream import CurrentStream, Pins
from ktbench.engine.experts import OriginalExperts
from ktbench.engine.forms import ExpertMatrices, ExpertsForm
from ktbench.engine.routing import NO_EXPERT, Routing, split_ids

# More tokens than any call gives one expert.
_MOST_TOKENS = 2**24

# Enough for arithmetic to show beside the reading of the weights, few enough to take no time.
_MANY_TOKENS, _TRIES = 64, 5
# Experts in a timed call of the host.
_TOGETHER = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class FiddlerCosts:
    """Seconds that one expert takes, as Fiddler models them.

    The host takes `host_call_s` + tokens · `host_token_s`; the device `copy_s` for the weights and `device_s` for any
    number of tokens. Raises ValueError for seconds that are negative or not finite.
    """

    host_call_s: float
    host_token_s: float
    copy_s: float
    device_s: float

    def __post_init__(self) -> None:
        for name, seconds in asdict(self).items():
            if not 0 <= seconds < math.inf:
                raise ValueError(f"{name}={seconds}: must be 0 or more seconds")

    def host_s(self, tokens: int) -> float:
        """Seconds of the host for so many tokens."""
        return self.host_call_s + tokens * self.host_token_s

    def explain(self) -> str:
        """The costs and what follows from them, in a sentence."""
        first = copied_from(self)
        then = "is never copied" if first is None else f"is copied from {first} tokens on"
        return (
            f"an expert takes {_ms(self.host_call_s)} and {_ms(self.host_token_s)} a token on the host, "
            f"{_ms(self.copy_s)} to copy and {_ms(self.device_s)} to run on the device, and {then}"
        )


def runs_at_device(tokens: int, costs: FiddlerCosts) -> bool:
    """Whether copying and running an expert on the device is faster: cpu_lat(s) > gpu_lat(s) + transfer_lat().

    That is Fiddler's comparison for an expert that does not live on the device; one without tokens runs nowhere.
    """
    return tokens > 0 and costs.host_s(tokens) > costs.device_s + costs.copy_s


def copied_from(costs: FiddlerCosts) -> int | None:
    """The fewest tokens with which an expert runs on the device; None where it never does."""
    tokens = range(1, _MOST_TOKENS + 1)
    first = bisect_left(tokens, True, key=lambda some: runs_at_device(some, costs))
    return tokens[first] if first < len(tokens) else None


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def faster_at_device(ids: Tensor, costs: FiddlerCosts) -> Tensor:
    """Bool [highest id + 2]: which experts of `ids` [T, k] int64 run on the device; the last, beyond all ids, never."""
    return torch.tensor([*(runs_at_device(tokens, costs) for tokens in _tokens(ids).tolist()), False])


def _tokens(ids: Tensor) -> Tensor:
    """[highest id + 1]: how many tokens each expert has in `ids` [T, k]."""
    return torch.bincount(ids[ids != NO_EXPERT])


class Slot:
    """Room on a device for the weights of one expert, laid out as its family holds them."""

    def __init__(self, experts: OriginalExperts, device: torch.device) -> None:
        self._parameters = {name: torch.empty_like(held[0], device=device) for name, held in _parameters(experts)}
        self._matrices = experts.form.split(self._parameters)

    def fill(self, experts: OriginalExperts, i: int, stream: CurrentStream) -> ExpertMatrices:
        """Puts copies of the weights of expert `i` into the stream; gives what the slot holds from then on."""
        for name, held in _parameters(experts):
            stream.copy(self._parameters[name], held[i])
        return self._matrices


def _parameters(experts: OriginalExperts) -> list[tuple[str, Tensor]]:
    return [(name, held.detach()) for name, held in experts.module.named_parameters(recurse=False)]


class FiddlerRuntime:
    """What the layers of an engine share: the costs that decide, room on the device, and counters.

    `counted["experts_copied"]` and `counted["experts_on_host"]` are the experts that calls ran here and there.
    """

    def __init__(
        self, device: torch.device, stream: CurrentStream, counted: dict[str, int], pins: Pins | None = None
    ) -> None:
        """`pins` pins the weights in host memory; None leaves them pageable."""
        self.device, self.stream, self.counted = device, stream, counted
        self.pins = pins
        self.costs: FiddlerCosts | None = None
        self._slots: dict[ExpertsForm, Slot] = {}
        counted |= {"experts_copied": 0, "experts_on_host": 0}

    def experts(self, original: OriginalExperts) -> FiddlerExperts:
        """The backend of a layer whose weights are those of `original`."""
        for _, held in _parameters(original):
            if self.pins is not None:
                self.pins.add(held)
        return FiddlerExperts(original, self)

    def copy(self, experts: OriginalExperts, i: int) -> ExpertMatrices:
        """Expert `i` on the device, until the next one comes.

        There is one slot, as Fiddler has one: copies and experts run one after the other in one stream.
        """
        if experts.form not in self._slots:
            self._slots[experts.form] = Slot(experts, self.device)
        return self._slots[experts.form].fill(experts, i, self.stream)


class FiddlerExperts(ExpertsBackend):
    """ExpertsBackend of the experts of one layer: each where it is faster by `copier.costs`, one after the other."""

    def __init__(self, original: OriginalExperts, copier: FiddlerRuntime) -> None:
        self.original, self.copier = original, copier

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] of `hidden` [T, H], in its type. Raises ValueError where no costs are set.

        The device is given its experts first and works while the host runs the others.
        """
        if self.copier.costs is None:
            raise ValueError("fiddler: the costs of host and device are measured before the first call")
        gates = routing.gates.cpu()
        ids = routing.ids.cpu()
        hosts, devices = split_ids(ids, faster_at_device(ids, self.copier.costs))
        on_host, copied = self._count("experts_on_host", hosts), self._count("experts_copied", devices)
        if not copied:
            return self._on_host(hidden.cpu(), hosts, gates).to(hidden.device)
        rows = hidden.cpu() if on_host else None  # before the device is busy
        output = self._on_device(hidden, devices, routing.gates)
        if rows is not None:
            output += self._on_host(rows, hosts, gates).to(hidden.device)
        return output.to(hidden.dtype)

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i` on the host."""
        return self.original.matrices(i)

    def _count(self, name: str, ids: Tensor) -> int:
        experts = int((_tokens(ids) > 0).sum())
        self.copier.counted[name] += experts
        return experts

    def _on_host(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """[T, H]. Base would run an expert for every id, so it is called with the pairs of real ids alone."""
        if (ids != NO_EXPERT).all():
            return self.original(hidden, Routing(ids=ids, gates=gates))
        token, column = (ids != NO_EXPERT).nonzero(as_tuple=True)
        pairs = Routing(ids=ids[token, column, None], gates=gates[token, column, None])
        outputs = self.original(hidden[token], pairs).float()
        return torch.zeros(hidden.shape).index_add_(0, token, outputs)

    def _on_device(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """[T, H] float32 on the device, of `ids` on the host, at least one of which is not -1."""
        tokens = _tokens(ids)
        by_expert = ids.flatten().argsort(stable=True)[-int(tokens.sum()) :].to(hidden.device)
        output = torch.zeros(hidden.shape, device=hidden.device)
        for expert, pairs in enumerate(torch.split(by_expert, tokens.tolist())):
            if len(pairs) == 0:
                continue
            token = pairs // ids.shape[1]
            made = run_expert(self.copier.copy(self.original, expert), hidden[token])
            output.index_add_(0, token, made * gates.flatten()[pairs, None])
        return output


def run_expert(expert: ExpertMatrices, rows: Tensor) -> Tensor:
    """[P, H] float32 of `rows` [P, H]: products in the type of the weights, the activation in float32."""
    gate_bias, up_bias, down_bias = expert.biases or (None, None, None)
    gate, up = linear(rows, expert.gate, gate_bias), linear(rows, expert.up, up_bias)
    return linear(expert.glu(gate.float(), up.float()).to(rows.dtype), expert.down, down_bias).float()


def measure_costs(
    experts: FiddlerExperts, clock: Callable[[], float] = perf_counter, tries: int = _TRIES
) -> FiddlerCosts:
    """Medians of a few tries, each with other experts of this layer, so that their weights come from memory.

    The host is timed with one token and with many: the line through both is its model. As in a step it runs several
    experts in a call, which share what a call itself takes.
    """
    original, copier = experts.original, experts.copier
    count, trials = original.form.experts, itertools.count()
    rows = torch.ones(_MANY_TOKENS, original.form.hidden, dtype=_parameters(original)[0][1].dtype)

    def seconds(run: Callable[[int], object]) -> float:
        spans_s = [_span_s(lambda: run(next(trials)), copier.stream, clock) for _ in range(tries + 1)]
        return median(spans_s[1:])  # the first chooses kernels

    def on_host(tokens: int) -> float:
        hidden, gates = rows[:tokens].repeat(_TOGETHER, 1), torch.ones(_TOGETHER * tokens, 1)
        some = torch.arange(_TOGETHER).repeat_interleave(tokens)[:, None]
        call = lambda i: original(hidden, Routing(ids=(some + _TOGETHER * i) % count, gates=gates))
        return seconds(call) / _TOGETHER

    one_s, many_s = on_host(1), on_host(_MANY_TOKENS)
    copy_s = seconds(lambda i: copier.copy(original, i % count))
    held, rows_at_device = copier.copy(original, 0), rows.to(copier.device)
    device_s = seconds(lambda _: run_expert(held, rows_at_device))
    token_s = max(0.0, many_s - one_s) / (_MANY_TOKENS - 1)
    return FiddlerCosts(host_call_s=max(0.0, one_s - token_s), host_token_s=token_s, copy_s=copy_s, device_s=device_s)


def _span_s(work: Callable[[], object], stream: CurrentStream, clock: Callable[[], float]) -> float:
    """Seconds from when nothing is under way to when `work` is done."""
    stream.finish()
    began = clock()
    work()
    stream.finish()
    return clock() - began
