"""A GPU's runtime on CPU tensors, strict where a real one is: late, in order, and deaf to Python.

Copies and launches do nothing when they are started; they are done, in that order, when a mark behind them is waited
for. So staging that is written again too early, or read too soon, gives wrong numbers. A captured graph is the list of
operations that its work made, with the tensors and Python numbers of then; a replay does those and no others, after it
has filled everything that the graph makes with nonsense. What reads a tensor back, or chooses by its numbers how much
to do, cannot be captured and raises, as on a GPU.

Operations of the tensors are seen by torch's dispatcher. Kernels (`kernel`) count as one operation each, whatever they
do inside; so do Triton's interpreted launches, once `record_triton` is told.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from safegen.engine.gpu.device import DeviceMemory

_READS_BACK = ("item", "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")
_MAKES_NO_NUMBERS = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")


class CaptureError(RuntimeError):
    """What a graph cannot hold."""


class _Recorder(TorchDispatchMode):
    """Notes every operation while it is entered, and is current."""

    current: _Recorder | None = None

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []
        self._is_inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_inside:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in _READS_BACK or (name.startswith("index") and _has_bools(args)):
            raise CaptureError(f"{name} reads from the device: it cannot be captured")
        return self.note(func, args, kwargs)

    def note(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._inside():
            made = func(*args, **kwargs)
        self.nodes.append((func, args, kwargs, made))
        return made

    @contextmanager
    def _inside(self) -> Iterator[None]:
        before, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = before

    @property
    def is_noting(self) -> bool:
        return not self._is_inside


def _has_bools(args: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1:]))


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that counts as one launch."""

    @functools.wraps(function)
    def launched(*args: Any, **kwargs: Any) -> Any:
        recorder = _Recorder.current
        if recorder is None or not recorder.is_noting:
            return function(*args, **kwargs)
        return recorder.note(function, args, kwargs)

    return launched


class _Graph:
    def __init__(self, recorder: _Recorder) -> None:
        self._nodes = recorder.nodes
        self._own: list[list[Tensor]] = []
        seen: set[int] = set()
        for _, args, kwargs, made in self._nodes:
            taken = {
                _memory(leaf) for leaf in tree_leaves((args, kwargs, *map(_fields, args))) if isinstance(leaf, Tensor)
            }
            results = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
            fresh = [each for each in results if _memory(each) not in taken and _memory(each) not in seen]
            self._own.append(fresh)
            seen |= {_memory(each) for each in fresh}

    def replay(self) -> None:
        for fresh in self._own:
            for tensor in fresh:
                _spoil(tensor)
        for (func, args, kwargs, made), fresh in zip(self._nodes, self._own):
            again = func(*args, **kwargs)
            if getattr(getattr(func, "overloadpacket", None), "__name__", "") in _MAKES_NO_NUMBERS:
                continue
            mine = {id(each) for each in fresh}
            for before, now in zip(tree_leaves(made), tree_leaves(again)):
                if isinstance(before, Tensor) and id(before) in mine:
                    before.copy_(now)


def _fields(value: Any) -> list[Any]:
    """Tensors of a dataclass, which pytrees do not look into."""
    return [getattr(value, name) for name in getattr(value, "__dataclass_fields__", ())]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _spoil(tensor: Tensor) -> None:
    if tensor.dtype.is_floating_point:
        tensor.fill_(torch.nan)
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


class FakeDevice:
    """`Device` on CPU tensors. memory_bytes, free_bytes: what it says of itself. num_uploads, num_downloads,
    num_replays: what was started."""

    torch_device = torch.device("cpu")

    def __init__(self, memory_bytes: int = 1 << 30, free_bytes: int = 1 << 30, peak: int = 1 << 20) -> None:
        self._queue: list[Callable[[], Any]] = []
        self._num_done = self._num_started = 0
        self._memory, self._peak = DeviceMemory(memory_bytes, free_bytes), peak
        self.num_uploads = self.num_downloads = self.num_replays = self.num_captures = self.num_waits = 0

    def staging(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def upload(self, source: Tensor, target: Tensor) -> None:
        self.num_uploads += 1
        self._start(lambda: target.copy_(source))

    def upload_beside(self, source: Tensor, target: Tensor) -> None:
        self.num_uploads += 1
        target.copy_(source)

    def download(self, source: Tensor, target: Tensor) -> None:
        self.num_downloads += 1
        target.fill_(85)  # what a reader finds who does not wait
        self._start(lambda: target.copy_(source))

    def settle(self) -> None:
        """What others do is done at once here."""

    def run(self, work: Callable[[], None]) -> None:
        self._start(work)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.num_captures += 1
        self._do(self._num_started)
        recorder = _Recorder()
        _Recorder.current = recorder
        try:
            with torch.inference_mode(), recorder:
                work()
        finally:
            _Recorder.current = None
        graph = _Graph(recorder)

        def replay() -> None:
            self.num_replays += 1
            self._start(graph.replay)

        return replay

    def mark(self) -> int:
        return self._num_started

    def wait(self, mark: int) -> None:
        self.num_waits += 1
        self._do(mark)

    def memory(self) -> DeviceMemory:
        return self._memory

    def peak_bytes(self, work: Callable[[], None]) -> int:
        self.run(work)
        self._do(self._num_started)
        return self._peak

    def _start(self, work: Callable[[], Any]) -> None:
        self._queue.append(work)
        self._num_started += 1

    def _do(self, mark: int) -> None:
        with torch.inference_mode():
            while self._num_done < mark:
                self._num_done += 1
                self._queue.pop(0)()


__all__ = ["CaptureError", "FakeDevice", "kernel"]
