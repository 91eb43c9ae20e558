# Makes states that a power cut can leave of a recorded disk: all writes up to the last flush, and any part of later writes.
import os
import random
from dataclasses import dataclass

import loop_disk

_SECTOR_BYTES = 512
_BLOCK_BYTES = 4096


@dataclass(frozen=True)
class CrashState:
    """cut: all writes up to the position. drop: of the blocks written after the last flush, some. tear: of their
    sectors, some."""
    position: int
    way: str
    seed: int

    def __str__(self):
        return f"position {self.position}, {self.way}, seed {self.seed}"


def draw(log, begin, count, seed):
    """Crash states of a log, in the order of their positions."""
    choices = random.Random(seed)
    states = [CrashState(choices.randint(begin, len(log)), choices.choice(["cut", "drop", "drop", "tear"]),
                         choices.getrandbits(32)) for _ in range(count)]
    return sorted(states, key=lambda state: state.position)


def _kept(state, offset, data, choices, keep):
    """The parts of one write that reached the disk."""
    if state.way == "cut":
        yield offset, data
        return
    # Half of the requests are kept or lost as a whole, as most disks do.
    if choices.random() < 0.5:
        if choices.random() < keep:
            yield offset, data
        return
    unit = _SECTOR_BYTES if state.way == "tear" else _BLOCK_BYTES
    at = 0
    while at < len(data):
        end = min(len(data), at + unit - (offset + at) % unit)
        if choices.random() < keep:
            yield offset + at, data[at:end]
        at = end


class Platter:
    """The image after the flushes. It advances through the log from its beginning to its end."""

    def __init__(self, base, log, directory):
        self.log = log
        self.image = loop_disk.copy_sparse(base, directory / "platter")
        self.position = 0

    def materialize(self, state, target):
        """The state as a new image. Positions must not decrease from call to call."""
        flushed = self.log.last_flush(state.position)
        assert flushed >= self.position, "crash states are asked for in the order of the log"
        fd = os.open(self.image, os.O_WRONLY)
        try:
            for entry in self.log.entries[self.position:flushed]:
                if entry is not None:
                    os.pwrite(fd, entry[1], entry[0])
        finally:
            os.close(fd)
        self.position = flushed
        loop_disk.copy_sparse(self.image, target)
        choices = random.Random(state.seed)
        keep = choices.choice([0.1, 0.5, 0.9])
        fd = os.open(target, os.O_WRONLY)
        try:
            for entry in self.log.entries[flushed:state.position]:
                if entry is None:
                    continue
                for offset, data in _kept(state, *entry, choices, keep):
                    os.pwrite(fd, data, offset)
        finally:
            os.close(fd)
        return target
