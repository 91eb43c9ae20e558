"""A plugin of pytest that does the same as seen_listener.cc: after each test, a line of STFS_MUTANTS_LOG, `SECONDS RESULT
NUMBERS NAME`, lists the faults that the test passed by. Daemons map the same file."""

import mmap
import os
import time

import pytest


class Listener:
    def __init__(self, seen: str, log: str):
        with open(seen, "r+b") as file:
            self.marks = mmap.mmap(file.fileno(), 0)
        self.log = log
        self.result = "passed"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        begin = time.monotonic()
        self.result = "passed"
        done = yield
        seconds = time.monotonic() - begin
        numbers = [number for number, mark in enumerate(self.marks[:]) if mark and number > 0]
        for number in numbers:
            self.marks[number] = 0
        # pytest names a test from the directory of its settings. To run the test again, its path must begin here.
        name = f"{os.path.relpath(item.path)}::{item.nodeid.split('::', 1)[1]}"
        with open(self.log, "a") as log:
            log.write(f"{seconds:.3f} {self.result} {','.join(map(str, numbers))} {name}\n")
        return done

    def pytest_runtest_logreport(self, report):
        if report.outcome != "passed" and self.result != "failed":
            self.result = report.outcome


def pytest_configure(config):
    seen, log = os.environ.get("STFS_MUTANTS_SEEN"), os.environ.get("STFS_MUTANTS_LOG")
    if seen and log:
        config.pluginmanager.register(Listener(seen, log))
