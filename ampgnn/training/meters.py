"""What an epoch costs."""

from __future__ import annotations

from pathlib import Path

import torch


class PeakMemory:
    """The peak memory since it was made: resident memory of this process on the CPU, torch's own count on CUDA.

    On the CPU it includes the interpreter and its libraries. ``since_start`` is False where the system does not let
    the peak be reset: then it is the peak of the whole process so far.
    """

    def __init__(self, device: str):
        self.device, self.since_start = device, True
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self.since_start = False

    def read(self) -> int:
        """Bytes."""
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
