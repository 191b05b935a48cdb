"""Resident memory of this process, out of /proc (Linux). MB are 10**6 bytes."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")


def _status_mb(field: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"{_STATUS} has no {field}")


def resident_mb() -> float:
    """Resident now, pages of mapped files included."""
    return _status_mb("VmRSS")


def peak_mb() -> float:
    """The most that was resident since the start, or since `reset_peak`."""
    return _status_mb("VmHWM")


def reset_peak() -> None:
    """Let the peak start over at what is resident now. Where the kernel does not allow it the peak stays, which can
    only make a figure larger."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return
