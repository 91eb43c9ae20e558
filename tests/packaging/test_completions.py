# What the completions offer: verbs, options, words, files and names of tensors, each where it belongs.
import os
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
    """A folder with a model, a file and a folder, and nothing else."""
    folder = tmp_path_factory.mktemp("completions")
    subprocess.run([BUILD / "stfs", "sample", folder / "m.safetensors"], check=True, capture_output=True)
    (folder / "file").touch()
    (folder / "folder").mkdir()
    return folder


def completed(folder, program, *words):
    result = subprocess.run(["bash", "-c", COMPLETE, "bash", COMPLETIONS / f"{program}.bash", f"_{program}", program, *words],
                            cwd=folder, capture_output=True, text=True, timeout=60,
                            env={**os.environ, "PATH": f"{BUILD}:{os.environ['PATH']}"})
    assert (result.returncode, result.stderr) == (0, "")
    return set(result.stdout.split())


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
    (["diff", "--"], {"--brief", "--threads", "--out", "--force", "--encoding", "--version", "--base", "--checksum", "--since", "--json",
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
    (["upload", "--device", ""], {"cpu", "cuda:0"}),
    (["serve", "-d", ""], {"cpu", "cuda:0"}),
    (["serve", "--dtype", "B"], {"BF16"}),
    (["serve", "--status", ""], FILES),
    (["devices", ""], set()),
    (["sample", ""], FILES),
    (["no-such-verb", ""], set()),
])
def test_stfs(folder, words, expected):
    assert completed(folder, "stfs", *words) == expected


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
