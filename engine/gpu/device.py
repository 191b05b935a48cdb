"""The seam to the GPU's runtime: memory, copies, captured graphs. `CudaDevice` is the real one.

Everything that is started runs in the order in which it was started, while the host goes on; `wait` is the only method
that waits. A captured graph repeats the launches that its work made, with the very tensors and numbers of then: what
changes from step to step must lie in tensors that stay where they are. A fake in tests/ runs the same calls on CPU
tensors, late and in order, so that a buffer which is written too early, or a number that was captured, shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of the whole device, and of those nobody's now."""

    total: int
    free: int


class Device(Protocol):
    """Called by the engine's thread alone."""

    torch_device: torch.device

    def staging(self, num_bytes: int) -> Tensor:
        """uint8 [num_bytes] on the host, pinned: what uploads come from and downloads go to."""
        ...

    def upload(self, source: Tensor, target: Tensor) -> None:
        """Start a copy from staging; the source must stay as it is until a later `mark` was waited for."""
        ...

    def upload_beside(self, source: Tensor, target: Tensor) -> None:
        """Like `upload`, but at once, while what was started before still runs; what is started later waits for it.
        Nothing that still runs may use the target."""
        ...

    def download(self, source: Tensor, target: Tensor) -> None:
        """Start a copy to staging; the target is read after a later `mark` was waited for."""
        ...

    def settle(self) -> None:
        """Wait for what was done to tensors of the device by others than this object, such as filling new ones."""
        ...

    def run(self, work: Callable[[], None]) -> None:
        """Start the launches that a call makes."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A graph of the launches that a call makes, and what starts it. The work is called more than once meanwhile,
        so calling it twice must do what calling it once does. Raises what the work raises."""
        ...

    def mark(self) -> Any:
        """A point behind all that was started so far."""
        ...

    def wait(self, mark: Any) -> None:
        """Until all before the mark is done. Raises what failed meanwhile."""
        ...

    def memory(self) -> DeviceMemory: ...

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """How much more memory a call had, at most, than there was in use before; waits for its end."""
        ...


class CudaDevice:
    """A CUDA device: one stream that computes, one that copies beside it, and one memory pool for all graphs."""

    def __init__(self, device: torch.device | str = "cuda") -> None:
        is_any = str(device) == "cuda"
        self.torch_device = torch.device("cuda", torch.cuda.current_device()) if is_any else torch.device(device)
        self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._copies = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(self.torch_device)  # what was loaded by other streams is there
        torch.cuda.empty_cache()  # and what that took for a while is free for this one's

    def staging(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def upload(self, source: Tensor, target: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def upload_beside(self, source: Tensor, target: Tensor) -> None:
        with torch.cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)
        self._stream.wait_stream(self._copies)

    def download(self, source: Tensor, target: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def settle(self) -> None:
        torch.cuda.synchronize(self.torch_device)  # this object's streams do not wait for the default one

    def run(self, work: Callable[[], None]) -> None:
        with torch.cuda.device(self.torch_device), torch.cuda.stream(self._stream):
            work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        # Once before: kernels are compiled and libraries take their workspaces outside of the graph.
        self.run(work)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads of the app may use CUDA meanwhile: only this one's calls may break the capture.
        captured = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with torch.cuda.device(self.torch_device), captured:
            work()

        def replay() -> None:
            with torch.cuda.stream(self._stream):
                graph.replay()

        return replay

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()

    def memory(self) -> DeviceMemory:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        cached = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(self.torch_device)
        return DeviceMemory(total, free + cached)

    def peak_bytes(self, work: Callable[[], None]) -> int:
        torch.cuda.synchronize(self.torch_device)
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        before = torch.cuda.memory_allocated(self.torch_device)
        self.run(work)
        self._stream.synchronize()
        return torch.cuda.max_memory_allocated(self.torch_device) - before


__all__ = ["CudaDevice", "Device", "DeviceMemory"]
