# The built programs and libraries have the properties that packaging/hardening.cmake sets.
import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", REPOSITORY / "build" / "release")).resolve()
CACHE = BUILD / "CMakeCache.txt"
pytestmark = [
    pytest.mark.skipif(not CACHE.exists(), reason=f"{BUILD} is not built"),
    pytest.mark.skipif(shutil.which("readelf") is None, reason="there is no readelf"),
    pytest.mark.skipif(CACHE.exists() and re.search(r"^STFS_SANITIZE:[A-Z]+=.", CACHE.read_text(), re.M) is not None,
                       reason="a sanitizer takes the place of these checks"),
]
PROGRAMS = ("safetensorsfs", "stfs")
LIBRARIES = ("libstfs.so*", "python/stfs/_stfs*.so")


def files(pattern):
    found = sorted({path.resolve() for path in BUILD.glob(pattern)} | {path.resolve() for path in BUILD.glob(f"tools/{pattern}")})
    if not found and "python" in pattern:
        pytest.skip(f"the Python module is not built, and so not {pattern}")
    assert found, f"{pattern} is not in {BUILD}"
    return found


def readelf(file, *options):
    return subprocess.run(["readelf", "--wide", *options, file], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("pattern", PROGRAMS)
def test_programs_lie_at_a_place_that_nobody_knows(pattern):
    for file in files(pattern):
        assert re.search(r"Type: +DYN", readelf(file, "--file-header")), file
        assert "PIE" in readelf(file, "--dynamic"), file


@pytest.mark.parametrize("pattern", (*PROGRAMS, *LIBRARIES))
def test_addresses_are_read_only_and_the_stack_is_no_code(pattern):
    for file in files(pattern):
        segments = readelf(file, "--segments")
        assert "GNU_RELRO" in segments, file
        stack = re.search(r"GNU_STACK +(0x\w+ +){5}(?P<rights>[RWE ]+?) +0x", segments)
        assert stack and "E" not in stack["rights"], segments
        assert re.search(r"\(FLAGS\) +BIND_NOW|\(FLAGS_1\).*\bNOW\b", readelf(file, "--dynamic")), file


@pytest.mark.parametrize("pattern", (*PROGRAMS, *LIBRARIES))
def test_stacks_and_calls_of_libc_are_checked(pattern):
    for file in files(pattern):
        symbols = readelf(file, "--dyn-syms")
        assert "__stack_chk_fail" in symbols, file
        assert not is_fortified() or re.search(r"__(?!stack)\w+_chk\b", symbols), file


def compiled():
    """The commands that compile the sources of installed files."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    parts = tuple(f"{REPOSITORY}/{part}/" for part in ("core", "fs", "tools", "packaging/python"))
    found = [entry["command"] for entry in commands if entry["file"].startswith(parts) and entry["file"].endswith(".cc")]
    assert found
    return found


def is_fortified():
    return bool(re.search(r"^STFS_HAVE_FORTIFY_[23]:INTERNAL=1", CACHE.read_text(), re.M))


def test_every_source_is_compiled_with_the_same_checks():
    wanted = ["-fstack-protector-strong", *(["-D_FORTIFY_SOURCE="] if is_fortified() else []),
              *(["-fcf-protection"] if platform.machine() in ("x86_64", "i686") else [])]
    for command in compiled():
        assert all(word in command for word in wanted), command


def test_libc_is_told_the_highest_level_that_it_has():
    if "_FORTIFY_SOURCE" in re.search(r"^CMAKE_CXX_FLAGS:\w+=(.*)$", CACHE.read_text(), re.M)[1]:
        pytest.skip("this build has a level of its own")
    levels = {int(level) for command in compiled() for level in re.findall(r"-D_FORTIFY_SOURCE=(\d)", command)}
    has_three = "STFS_HAVE_FORTIFY_3:INTERNAL=1" in CACHE.read_text()
    assert levels == {3 if has_three else 2}


def test_a_build_of_a_distribution_keeps_its_own_level(tmp_path):
    done = subprocess.run(["cmake", "-S", REPOSITORY, "-B", tmp_path, "-G", "Ninja", "-D", "STFS_TESTS=OFF", "-D", "STFS_CUDA=OFF",
                           "-D", "CMAKE_CXX_FLAGS=-O2 -D_FORTIFY_SOURCE=2"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = (tmp_path / "build.ninja").read_text()
    assert "-D_FORTIFY_SOURCE=2" in rules and "-U_FORTIFY_SOURCE" not in rules and "-D_FORTIFY_SOURCE=3" not in rules
