# The words that the completions offer at each place: verbs, options, values, files and names of tensors.
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", REPOSITORY / "build" / "release")).resolve()
COMPLETIONS = REPOSITORY / "packaging" / "completions"
pytestmark = pytest.mark.skipif(not (BUILD / "stfs").exists(), reason=f"{BUILD} is not built")

COMPLETE = """
compopt() { :; }
source "$1"; function=$2; shift 2
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$function"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that contains only a model, a file and a folder."""
    folder = tmp_path_factory.mktemp("completions")
    subprocess.run([BUILD / "stfs", "sample", folder / "m.safetensors"], check=True, capture_output=True)
    (folder / "file").touch()
    (folder / "folder").mkdir()
    return folder


def completed(folder, program, *words, programs=BUILD, lines=False):
    result = subprocess.run(["bash", "-c", COMPLETE, "bash", COMPLETIONS / f"{program}.bash", f"_{program}", program, *words],
                            cwd=folder, capture_output=True, text=True, timeout=60,
                            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines() if lines else set(result.stdout.split())


FILES = {"m.safetensors", "file", "folder"}
TENSOR = {"lm_head.weight"}


@pytest.mark.parametrize(("words", "expected"), [
    (["s"], {"slice", "serve", "sample", "set"}),
    (["help", "d"], {"devices", "diff"}),
    (["ls", "--"], {"--sort", "--reverse", "--bytes", "--names", "--json", "--help"}),
    (["ls", "--sort", ""], {"name", "size", "offset"}),
    (["ls", ""], FILES),
    (["ls", "m.safetensors", "lm_"], TENSOR),
    (["ls", "--sort", "size", "m.safetensors", "lm_head.weight", "lm_"], TENSOR),
    (["cat", "-f", "'m.safetensors'", "lm_"], TENSOR),
    (["slice", "m.safetensors", "lm_"], TENSOR),
    (["slice", "m.safetensors", "lm_head.weight", ""], set()),
    (["slice", "-o", ""], FILES),
    (["slice", "-o", "file", "m.safetensors", "lm_"], TENSOR),
    (["verify", "--threads", ""], set()),
    (["verify", "--threads", "3", "m.safetensors", "lm_"], TENSOR),
    (["diff", "--"], {"--brief", "--threads", "--out", "--plot", "--svg", "--force", "--encoding", "--version", "--base", "--checksum", "--since", "--json",
                       "--help"}),
    (["diff", "--encoding", ""], {"xor", "overwrite"}),
    (["diff", "--checksum", "x"], {"xxh3-128"}),
    (["diff", "--out", ""], FILES),
    (["diff", "m.safetensors", ""], FILES),
    (["diff", "m.safetensors", "m.safetensors", "lm_"], TENSOR),
    (["put", "m.safetensors", "lm_"], TENSOR),
    (["put", "--wait", "3", "m.safetensors", "lm_head.weight", ""], FILES),
    (["put", "--durability", "p"], {"power", "process"}),
    (["put", "--from-tensor", ""], set()),
    (["apply", "m.safetensors", ""], FILES),
    (["pull", "folder", ""], FILES),
    (["pull", "--durability", "p"], {"power", "process"}),
    (["pull", "--status", "folder", ""], FILES),
    (["commit", ""], FILES),
    (["commit", "--into", ""], FILES),
    (["upload", "m.safetensors", ""], FILES),
    (["verify", "--svg", ""], FILES),
    (["put", "--dtype", "F3"], {"F32"}),
    (["set", "--dtype", "BO"], {"BOOL"}),
    (["upload", "--device", "c"], "devices"),
    (["serve", "-d", "c"], "devices"),
    (["umount", "/no-such-mount"], set()),
    (["top", "file"], set()),
    (["serve", "--dtype", "B"], {"BF16"}),
    (["serve", "--status", ""], FILES),
    (["devices", ""], set()),
    (["sample", ""], FILES),
    (["no-such-verb", ""], set()),
])
def test_stfs(folder, words, expected):
    if expected == "devices":  # that exist
        expected = set(subprocess.run([BUILD / "stfs", "devices", "--names"], capture_output=True, text=True, check=True).stdout.split())
        assert "cpu" in expected
    assert completed(folder, "stfs", *words) == expected


@pytest.fixture
def asked(folder):
    """A `stfs` that notes its calls and does what a test says."""
    programs = folder / "bin"
    programs.mkdir()
    calls = folder / "calls"

    def make(script):
        (programs / "stfs").write_text(f"#!/bin/sh\necho \"$*\" >> {calls}\n{script}\n")
        (programs / "stfs").chmod(0o755)
        return programs, lambda: calls.read_text().splitlines() if calls.exists() else []

    yield make
    shutil.rmtree(programs)
    calls.unlink(missing_ok=True)


def test_a_target_that_is_no_archive_is_not_opened(folder, asked):
    programs, calls = asked("echo name")
    assert completed(folder, "stfs", "ls", "file", "n", programs=programs) == set()
    assert calls() == []
    assert completed(folder, "stfs", "ls", "m.safetensors", "n", programs=programs) == {"name"}
    assert calls() == ["ls --names -- m.safetensors"]


def test_a_listing_that_does_not_end_is_given_up(folder, asked):
    programs, calls = asked("echo name; exec sleep 600")
    assert completed(folder, "stfs", "ls", "m.safetensors", "n", programs=programs) == {"name"}
    assert len(calls()) == 1


def test_a_hostile_name_is_offered_as_one_quoted_word_or_not_at_all(folder):
    names = ["plain", "$(touch made)", "a b;`id`", "<script>", "esc\x1b[31m", "rtl\u202e", "line\nfeed", "--out=made"]
    header = json.dumps({name: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for name in names}).encode()
    archive = folder / "hostile.safetensors"
    archive.write_bytes(len(header).to_bytes(8, "little") + header)
    try:
        lines = completed(folder, "stfs", "cat", "hostile.safetensors", "", lines=True)
        assert not any(character in "".join(lines) for character in "\x1b\u202e")
        back = subprocess.run(["bash", "-c", "printf '%s\\n' " + " ".join(lines)], cwd=folder, capture_output=True, text=True, timeout=60)
        assert sorted(back.stdout.splitlines()) == sorted(["plain", "$(touch made)", "a b;`id`", "<script>"])
        assert not (folder / "made").exists()
    finally:
        archive.unlink()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_have_the_same_lists_and_limits(shell):
    text = (COMPLETIONS / ("_stfs" if shell == "zsh" else "stfs.fish")).read_text()
    assert "timeout -k 1 2 stfs" in text and len(re.findall(r"\bstfs \$", text)) == 1
    for kind in ("tensors", "devices", "mounts"):
        assert text.count(f"_stfs_{kind}") > 1, kind


@pytest.mark.parametrize(("words", "expected"), [
    (["-"], {"-o", "-f", "-d", "-h", "--help", "-V", "--version"}),
    (["-o", "l"], {"layout=flat", "layout=tree", "log="}),
    (["-o", "ro,no"], {"ro,nolock", "ro,nonempty", "ro,noexec", "ro,noatime"}),
    (["-o", "ro,durability", "=", "p"], {"power", "process"}),
    (["-o", "io", "="], {"auto", "mmap", "pread"}),
    ([""], FILES),
    (["-o", "ro", "m.safetensors", ""], {"folder"}),
])
def test_safetensorsfs(folder, words, expected):
    assert completed(folder, "safetensorsfs", *words) == expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize("name", ["_stfs", "_safetensorsfs"])
def test_zsh_can_read_the_completions(name):
    assert subprocess.run(["zsh", "-n", COMPLETIONS / name], capture_output=True, timeout=60).stderr == b""
