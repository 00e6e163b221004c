"""A device of CPU tensors that works on its own: what a CUDA device does to Python code, but for the arithmetic.

Tensors are of device `sim`. What is done with them is put into the current stream, which a thread of its own works off
late and in order; copies and functions of the host go through a second one beside it. Memory holds NaN until it is
computed, and is overwritten once Python lets go of it, in the order of the current stream, as an allocator would reuse
it. What needs a value (item, nonzero, .cpu()) waits. In a capture nothing is done, what needs a value raises, and a
replay does it all again in the same memory.
"""

from __future__ import annotations

import ctypes
import queue
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
NEEDS_VALUES = {
    aten._local_scalar_dense,
    aten.item,
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten.bincount,
}
# How often a stream is late, and by how many seconds.
LATE, LATE_S = 0.05, 0.0005
ANSWERED_S = 60.0
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Work = Callable[[], object]


class Owner:
    """Of memory; views of it share one."""


class SimTensor(Tensor):
    """`held` is the memory of the device, `owner` what keeps it."""

    held: Tensor
    owner: Owner

    @staticmethod
    def __new__(cls, held: Tensor, owner: Owner | None = None) -> SimTensor:
        made: SimTensor = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device("sim", 0),
        )
        made.held = held
        return made

    def __init__(self, held: Tensor, owner: Owner | None = None) -> None:
        device = AsyncDevice.now
        assert device is not None
        self.owner = owner or Owner()
        if owner is None:
            weakref.finalize(self.owner, device.freed, held, device.capturing)

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("cannot convert a tensor of device sim to numpy")
        return self.cpu().numpy()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"SimTensor{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert AsyncDevice.now is not None
        return NotImplemented if has_strangers((args, kwargs)) else AsyncDevice.now.do(func, args, kwargs or {})


# PyTorch's own of its pytrees take half of the time of a test.
def leaves_of(content: Any) -> list[Any]:
    """What lies in nested tuples, lists and dicts."""
    if isinstance(content, tuple | list):
        return [leaf for one in content for leaf in leaves_of(one)]
    return leaves_of([*content.values()]) if isinstance(content, dict) else [content]


def mapped(change: Callable[[Any], Any], content: Any) -> Any:
    """The same nesting with changed leaves."""
    if isinstance(content, tuple | list):
        return type(content)([mapped(change, one) for one in content])
    if isinstance(content, dict):
        return {key: mapped(change, one) for key, one in content.items()}
    return change(content)


def has_strangers(content: Any) -> bool:
    """Tensors of other kinds, which know what to do first."""
    known = (Tensor, SimTensor, torch.nn.Parameter)
    return any(isinstance(x, Tensor) and type(x) not in known for x in leaves_of(content))


def held(content: Any) -> Any:
    return mapped(lambda x: x.held if isinstance(x, SimTensor) else x, content)


def wrapped(content: Any, owner: Owner | None = None) -> Any:
    return mapped(
        lambda x: SimTensor(x, owner) if isinstance(x, Tensor) and not isinstance(x, SimTensor) else x, content
    )


def on_meta(x: Any) -> Any:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if isinstance(x, Tensor) else x


def described(content: Any) -> Any:
    """What the shapes and types of an operation's results follow from, hashable."""
    if isinstance(content, tuple | list):
        return tuple([described(one) for one in content])
    if isinstance(content, dict):
        return tuple([(key, described(value)) for key, value in content.items()])
    if isinstance(content, SimTensor):
        return described(content.held)
    if isinstance(content, Tensor):
        return Tensor, content.shape, content.stride(), content.dtype
    return type(content), content


_METAS: dict[Any, Any] = {}


def metas_of(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives, on `meta`; PyTorch finds it out in Python, which takes most of the time of a test."""
    key = func, described(args), described(kwargs)
    if key not in _METAS:
        _METAS[key] = func(*mapped(on_meta, held(args)), **mapped(on_meta, held(kwargs)))
    return _METAS[key]


@cache
def is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def spoil(tensor: Tensor) -> None:
    tensor.fill_(torch.nan if tensor.is_floating_point() else 77)


def spoiled(like: Tensor) -> Tensor:
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    spoil(made)
    return made


class FactoryMode(TorchFunctionMode):
    """torch.tensor moves its content by itself, unseen by other modes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device).type == "sim":
            return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        return func(*args, **kwargs)


class Stream:
    """Does what it is given on a thread of its own, now and then late; a `slow` one not before it is waited for."""

    def __init__(self, seed: int, *, slow: bool) -> None:
        self._slow, self._kept, self._keeping = slow, deque[Work](), threading.Lock()
        self._work: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._given = self._done = 0
        self._random = random.Random(seed)
        self.failed: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, work: Work) -> None:
        self._given += 1
        self._kept.append(work)
        if not self._slow:
            self.begin()

    def begin(self) -> None:
        """All that was put in so far is done from now on."""
        with self._keeping:
            while self._kept:
                self._work.put(self._kept.popleft())

    @property
    def is_idle(self) -> bool:
        return self._done == self._given

    def _run(self) -> None:
        with torch.inference_mode():
            while True:
                work = self._work.get()
                if self._random.random() < LATE:
                    time.sleep(LATE_S)
                try:
                    work()
                except BaseException as error:  # told at the next wait, as CUDA does
                    self.failed = self.failed or error
                self._done += 1

    def finish(self) -> None:
        done = threading.Event()
        self.put(done.set)
        self.begin()
        done.wait()
        if self.failed is not None:
            failed, self.failed = self.failed, None
            raise RuntimeError(f"the device failed: {failed!r}") from failed


class Graph:
    """Work of a capture, each as what puts it into its stream."""

    def __init__(self) -> None:
        self.work: list[Work] = []

    def replay(self) -> None:
        for put in self.work:
            put()


class SideStream:
    """See `ktbench.engine.cuda.stream.SideStream`."""

    def __init__(self, device: AsyncDevice, stream: Stream) -> None:
        self._device, self._stream = device, stream

    def fork(self) -> None:
        self._device.note(partial(follow, self._device.main, self._stream))

    def join(self) -> None:
        self._device.note(partial(follow, self._stream, self._device.main))

    def copy(self, to: Tensor, source: Tensor) -> None:
        self._device.note(partial(self._stream.put, partial(held(to).copy_, held(source))))

    def call(self, function: int, data: int) -> None:
        self._device.note(partial(self._stream.put, partial(HostFunction(function), data)))

    def write(self, word: int, value: int) -> None:
        self._device.note(partial(self._stream.put, partial(set_word, word, value)))

    def await_value(self, word: int, value: int) -> None:
        self._device.note(partial(self._stream.put, partial(await_word, word, value)))

    def done(self) -> bool:
        is_idle = self._stream.is_idle
        self._stream.begin()
        return is_idle

    def finish(self) -> None:
        self._device.wait("side")
        self._stream.finish()


def set_word(address: int, value: int) -> None:
    ctypes.c_uint32.from_address(address).value = value


def await_word(address: int, value: int) -> None:
    """A device would wait for ever."""
    word, until_s = ctypes.c_uint32.from_address(address), time.perf_counter() + ANSWERED_S
    while word.value != value:
        if time.perf_counter() > until_s:
            raise RuntimeError("nobody answered a flag")
        time.sleep(0)


def follow(first: Stream, then: Stream) -> None:
    """What is put into `then` from now on waits for what is in `first`."""
    done = threading.Event()

    def wait() -> None:
        first.begin()
        done.wait()

    first.put(done.set)
    then.put(wait)


class Mark:
    """See `ktbench.engine.cuda.stream.Mark`."""

    def __init__(self, device: AsyncDevice) -> None:
        self._device, self.at_s = device, torch.nan
        device.main.put(self._reach)

    def _reach(self) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        self._device.finish()

    def elapsed_time(self, end: Mark) -> float:
        return 1e3 * (end.at_s - self.at_s)


class AsyncDevice(TorchDispatchMode):
    """The device: its current stream, the one beside it, its captures; entered as a mode, it sees all operations.

    `operations` counts what was dispatched to it, `waits` how often Python waited. `slow` is `main`, `side` or
    `transfers`, a stream that does nothing before it is waited for or asked whether it is done.
    """

    now: AsyncDevice | None = None

    def __init__(self, seed: int = 0, slow: str = "") -> None:
        super().__init__()
        if AsyncDevice.now is None:
            _setup_privateuseone_for_python_backend("sim")
        AsyncDevice.now = self
        self.device = torch.device("sim", 0)
        self.main = Stream(seed, slow=slow == "main")
        self.side = SideStream(self, Stream(seed + 1, slow=slow == "side"))
        self.transfers = SideStream(self, Stream(seed + 2, slow=slow == "transfers"))
        self.capturing: Graph | None = None
        self.operations = self.waits = 0

    def note(self, put: Work) -> None:
        """Put work into a stream now, or with each replay of what is being captured."""
        if self.capturing is None:
            put()
        else:
            self.capturing.work.append(put)

    def _put(self, work: Work) -> None:
        self.note(partial(self.main.put, work))

    def freed(self, memory: Tensor, captured: Graph | None) -> None:
        """Whoever allocates next gets this memory; that of a capture stays with its graph."""
        if captured is self.capturing:
            self._put(partial(spoil, memory))

    def wait(self, what: object) -> None:
        if self.capturing is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
        self.waits += 1

    def mark(self) -> Mark:
        return Mark(self)

    def finish(self) -> None:
        """All that was put into the current stream is done."""
        self.wait("finish")
        self.main.finish()

    @contextmanager
    def aside(self) -> Iterator[None]:
        yield

    @contextmanager
    def captured(self) -> Iterator[Graph]:
        self.finish()
        graph = self.capturing = Graph()
        try:
            yield graph
        finally:
            self.capturing = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if has_strangers((args, kwargs)):
            return NotImplemented
        to = kwargs.get("device")
        ours = any(isinstance(x, SimTensor) for x in leaves_of((args, kwargs)))
        if ours or (to is not None and torch.device(to).type == "sim"):
            return self.do(func, args, kwargs)
        return func(*args, **kwargs)

    def do(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation of PyTorch with a tensor of this device among its arguments or results."""
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        with _disable_current_modes():
            return self._do(func, args, kwargs)

    def _do(self, func: Any, args: Any, kwargs: Any) -> Any:
        packet, to, leaves = func.overloadpacket, kwargs.get("device"), leaves_of((args, kwargs))
        if packet is aten._to_copy and to is not None:
            return self._moved(func, args, kwargs, torch.device(to))
        if packet is aten.copy_:
            return self._copied(args)
        if packet in NEEDS_VALUES or _by_mask(packet, args):
            self._done_now(func)
            return wrapped(func(*held(args), **held(kwargs)))
        self._refuse_host_tensors(func, packet, leaves)
        named = held(kwargs) | ({} if to is None else {"device": torch.device("cpu")})
        if _is_view(func):
            base = next(x for x in leaves if isinstance(x, SimTensor))
            with torch.inference_mode(base.is_inference()):
                return wrapped(func(*held(args), **named), base.owner)
        self.operations += 1
        if func._schema.is_mutable:
            self._put(partial(func, *held(args), **named))
            return _written(func, args, kwargs)
        metas = metas_of(func, args, kwargs | ({} if to is None else {"device": "meta"}))
        outputs = mapped(lambda x: spoiled(x) if isinstance(x, Tensor) else x, metas)
        self._put(partial(_compute, func, held(args), named, _tensors(outputs)))
        return wrapped(outputs)

    def _refuse_host_tensors(self, func: Any, packet: Any, leaves: Sequence[Any]) -> None:
        if not any(isinstance(x, Tensor) and not isinstance(x, SimTensor) and x.dim() > 0 for x in leaves):
            return
        if packet is not aten.index:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device")
        self._done_now(func)  # a pageable index goes over at once

    def _done_now(self, what: object) -> None:
        self.wait(what)
        self.main.finish()

    def _moved(self, func: Any, args: Any, kwargs: Any, to: torch.device) -> Any:
        source, named = args[0], {**kwargs, "device": torch.device("cpu")}
        self.operations += 1
        if to.type == "sim" and isinstance(source, SimTensor):
            output = spoiled(metas_of(func, (source,), kwargs | {"device": "meta"}))
            self._put(partial(_compute, func, (source.held,), named, [output]))
            return wrapped(output)
        self._done_now(func)  # pageable either way
        copied = func(held(source), **named)
        copied = copied.clone() if copied is held(source) else copied
        return SimTensor(copied) if to.type == "sim" else copied

    def _copied(self, args: Any) -> Any:
        to, source = args[0], args[1]
        self.operations += 1
        if isinstance(to, SimTensor) and (isinstance(source, SimTensor) or source.dim() == 0):
            self._put(partial(to.held.copy_, held(source)))
        elif isinstance(to, SimTensor) and self.capturing is None:  # to the device: what is read is staged at once
            self._put(partial(to.held.copy_, source.clone()))
        else:
            self._done_now("copy_ from or to memory of the host")
            held(to).copy_(held(source))
        return to


def _by_mask(packet: Any, args: Any) -> bool:
    return packet is aten.index and any(x is not None and x.dtype == torch.bool for x in args[1])


@cache
def _is_view(func: Any) -> bool:
    aliases = [one.alias_info for one in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    given = {one.name: value for one, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    written = [
        given[one.name]
        for one in func._schema.arguments
        if one.alias_info is not None and one.alias_info.is_write and one.name in given
    ]
    return written[0] if len(written) == 1 else tuple(written)


def _tensors(content: Any) -> list[Tensor]:
    return [x for x in leaves_of(content) if isinstance(x, Tensor)]


def _compute(func: Any, args: Any, kwargs: Any, outputs: Sequence[Tensor]) -> None:
    for to, new in zip(outputs, _tensors(func(*args, **kwargs)), strict=True):
        to.copy_(new)
