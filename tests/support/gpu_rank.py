"""A rank of a model that is spread over devices, as a process of its own: on a fake device, over gloo."""

from __future__ import annotations

from safegen.engine.gpu.runner import GpuRunner
from safegen.engine.parallel.gpu import follow, load_part_of
from safegen.engine.parallel.group import Group
from safegen.engine.parallel.worker import Commands, run
from tests.support.fake_device import FakeDevice, kernel
from tests.support.graph_ops import GraphOps


def _serve(commands: Commands) -> None:
    Group.gather = kernel(Group.gather)  # type: ignore[method-assign] # a launch, as NCCL's is
    device, kernels = FakeDevice(free_bytes=commands.settings["free_bytes"]), GraphOps()
    model, group, options = load_part_of(commands.settings["path"], kernels, commands.shard, commands.settings)
    runner = GpuRunner(model, kernels, device, **options)
    commands.answer()
    follow(commands, runner, group, "gloo", lambda: device.wait(device.mark()))


if __name__ == "__main__":
    run(_serve)
