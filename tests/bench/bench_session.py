"""A run of a benchmark: its directory, its servers, what it found, left out and failed at, and an end that leaves
nothing mounted, also at ^C."""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_table import Table
from mounts import BINARY, Server, mounted_below, unmount_below
from warm_memory import WarmMemory

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def parser_for(description: str, measures: Sequence[str]) -> argparse.ArgumentParser:
    """The options that every benchmark here has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=None, help="that count (default 5)")
    parser.add_argument("--only", default=",".join(measures), help="of " + ",".join(measures))
    parser.add_argument("--directory", default=None, help="where to put the data (default: the temporary directory)")
    parser.add_argument("--json", default=None, metavar="FILE", help="write the results there")
    return parser


def wanted(parser: argparse.ArgumentParser, arguments: argparse.Namespace, measures: Sequence[str]) -> set[str]:
    """The measures that --only names; ends with wrong usage where one is unknown."""
    names = set(arguments.only.split(","))
    if unknown := names - set(measures):
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    return names


def parse_size(text: str) -> int:
    """Bytes from 64M, 2G, ..."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    unit = text[-1].upper()
    return int(float(text[:-1]) * units[unit]) if unit in units else int(text)


class Session:
    """Owns the temporary directory and everything that is mounted below it."""

    def __init__(self, rounds: int, directory: str | None, is_quick: bool = False) -> None:
        if not BINARY.exists():
            sys.exit(f"{BINARY} is not built (cmake --preset release && cmake --build --preset release)")
        self.table = Table(rounds)
        self.directory = Path(tempfile.mkdtemp(prefix="stfs-bench-", dir=directory)).resolve()
        self.memory = WarmMemory(self.directory / "warm-memory", may_fill=not is_quick)
        self.is_root = os.geteuid() == 0
        self.notes: list[str] = []
        self.skipped: list[str] = []
        self.failed: list[str] = []
        self.servers: list[Server] = []
        self.started = time.monotonic()

    def __enter__(self) -> Session:
        for number in SIGNALS:
            signal.signal(number, _end)
        return self

    def __exit__(self, *_: object) -> None:
        for number in SIGNALS:  # a second ^C must not leave a mount behind
            signal.signal(number, signal.SIG_IGN)
        for server in reversed(self.servers):
            with contextlib.suppress(Exception):
                server.stop()
        self.memory.close()
        unmount_below(self.directory)
        if not mounted_below(self.directory):  # else it would delete what is mounted
            shutil.rmtree(self.directory, ignore_errors=True)

    def path(self, name: str) -> Path:
        return self.directory / name

    def serve(self, server: Server) -> Server:
        """Starts a server that ends with the session at the latest."""
        self.servers.append(server)
        return server.start()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def skip(self, name: str, why: str) -> None:
        self.skipped.append(f"{name}: {why}")
        print(f"\n{name}: skipped: {why}", flush=True)

    def run(self, name: str, measure: Callable[[], None]) -> None:
        """One measure; where it fails, the others go on and the exit status tells."""
        try:
            measure()
        except Exception as error:
            traceback.print_exc()
            self.failed.append(f"{name}: {error}")

    def finish(self, json_path: str | None, more: dict[str, object]) -> int:
        """Prints what is not in the rows, writes the JSON, and gives the exit status."""
        print(f"\n{self.table.goals_text()}\n")
        for kind, lines in (("note", self.notes), ("skipped", self.skipped), ("FAILED", self.failed)):
            for line in lines:
                print(f"{kind}: {line}")
        print(f"took {time.monotonic() - self.started:.0f} s, load {os.getloadavg()[0]:.2f}", flush=True)
        if json_path:
            result = {**more, "rounds": self.table.rounds, "kernel": platform.release(),
                      "processors": os.cpu_count(), "load": os.getloadavg(), "binary": str(BINARY),
                      "binary_time": time.strftime("%FT%TZ", time.gmtime(BINARY.stat().st_mtime)),
                      "seconds": time.monotonic() - self.started, "notes": self.notes, "skipped": self.skipped,
                      "failed": self.failed, "rows": [row.as_json() for row in self.table.rows]}
            Path(json_path).write_text(json.dumps(result, indent=1) + "\n")
        return 1 if self.failed else 0


def _end(number: int, _: object) -> None:
    """Unwinds, so that every `with` and `finally` on the way cleans up."""
    sys.exit(128 + number)
