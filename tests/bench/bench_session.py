"""The directories, servers and memory of a run. At its end nothing stays mounted and no file is left, also after ^C."""
from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from bench_row import MIB, Sizes
from mounts import BINARY, Server, mounted_below, unmount_below
from warm_memory import WarmMemory

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Fixture = TypeVar("Fixture")


class Place:
    """A directory for the files and servers of one row, or for what the rows of a group share. Its close stops the servers
    and removes the directory."""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.sizes = session.sizes
        self.directory = session.directory / name
        self.directory.mkdir()
        self._ends = contextlib.ExitStack()

    def path(self, name: str) -> Path:
        return self.directory / name

    def serve(self, server: Server) -> Server:
        """Starts a server, which ends with the place at the latest."""
        self.at_end(server.stop)
        return server.start()

    def run_until_end(self, command: Sequence[object], **more: object) -> subprocess.Popen:
        """Starts a process, which ends with the place."""
        process = subprocess.Popen([str(word) for word in command], start_new_session=True, **more)

        def end() -> None:
            process.terminate()
            process.wait()
        self.at_end(end)
        return process

    def at_end(self, action: Callable[[], object]) -> None:
        def quietly() -> None:
            with contextlib.suppress(Exception):
                action()
        self._ends.callback(quietly)

    def enter(self, context: contextlib.AbstractContextManager[Fixture]) -> Fixture:
        return self._ends.enter_context(context)

    def shared(self, kind: Callable[[Place], Fixture]) -> Fixture:
        """Returns kind(place of the group), which is made once for all rows of the group."""
        return self.session.shared(kind)

    def close(self) -> None:
        try:
            self._ends.close()
        finally:
            unmount_below(self.directory)
            if not mounted_below(self.directory):  # otherwise the files below the mount would be deleted
                shutil.rmtree(self.directory, ignore_errors=True)


class Session:
    """Owns the temporary directory and all places in it."""

    def __init__(self, sizes: Sizes, rounds: int, repeats: int, directory: str | None, may_fill: bool) -> None:
        if not BINARY.exists():
            sys.exit(f"{BINARY} is not built (cmake --preset release && cmake --build --preset release)")
        self.sizes = sizes
        self.rounds = rounds
        self.repeats = repeats
        self.directory = Path(tempfile.mkdtemp(prefix="stfs-bench-", dir=directory)).resolve()
        self.memory = WarmMemory(self.directory / "warm-memory", may_fill)
        self.is_root = os.geteuid() == 0
        self.notes: list[str] = []
        self.started = time.monotonic()
        self._places: list[Place] = []
        self._shared: dict[object, object] = {}
        self._group_place: Place | None = None

    def __enter__(self) -> Session:
        for number in SIGNALS:
            signal.signal(number, _end)
        return self

    def __exit__(self, *_: object) -> None:
        for number in SIGNALS:  # a second ^C must not leave a mount behind
            signal.signal(number, signal.SIG_IGN)
        for place in reversed(self._places):
            with contextlib.suppress(Exception):
                place.close()
        self.memory.close()
        unmount_below(self.directory)
        if not mounted_below(self.directory):
            shutil.rmtree(self.directory, ignore_errors=True)

    @contextlib.contextmanager
    def place(self, name: str):
        """A place for one row."""
        place = Place(self, name)
        self._places.append(place)
        try:
            yield place
        finally:
            self._close(place)

    def shared(self, kind: Callable[[Place], Fixture]) -> Fixture:
        if kind not in self._shared:
            if self._group_place is None:
                self._group_place = Place(self, "shared")
                self._places.append(self._group_place)
            self._shared[kind] = kind(self._group_place)
        return self._shared[kind]

    def end_group(self) -> None:
        """Removes what the rows of a group have shared."""
        if self._group_place is not None:
            self._close(self._group_place)
        self._group_place = None
        self._shared.clear()

    def _close(self, place: Place) -> None:
        self._places.remove(place)
        place.close()

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def is_late(self) -> bool:
        """Returns true if the run has taken the time of a run on a quiet machine, so that no row is measured again."""
        return time.monotonic() - self.started > 60 * self.sizes.minutes


def parse_size(text: str) -> int:
    """Returns the bytes of 64M, 2G, ..."""
    units = {"K": 1 << 10, "M": MIB, "G": 1 << 30}
    unit = text[-1].upper()
    return int(float(text[:-1]) * units[unit]) if unit in units else int(text)


def _end(number: int, _: object) -> None:
    """Ends with an exception, so that every `with` and `finally` cleans up."""
    sys.exit(128 + number)
