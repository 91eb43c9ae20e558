# A tool of root's runs in a directory that another user may write. A file that must be on this machine is named by an address:
# the kernel would take "https://HOST/x" for a path below the working directory, where that user has made a directory "https:".
import os
import shutil
import subprocess

import archive_file
import pytest
from mounted import BUILD
from test_planted_files import MALLORY, as_mallory

pytestmark = [pytest.mark.needs_root, pytest.mark.parametrize("planted_ground", ["disk"], indirect=True)]

OWN = {"w": archive_file.random_array("u1", (16,), 1)}
PLANTED = {"w": archive_file.random_array("u1", (16,), 2)}
HOST = "https://good.invalid"
COMMANDS = {
    "put": ["put", "{own}", "w", HOST + "/w.bin"],
    "put of npy": ["put", "{own}", "w", HOST + "/w.npy"],
    "repack": ["repack", "--delta", HOST + "/delta.safetensors", "{own}", "{out}"],
    "repack of a mount": ["repack", "--delta", HOST + "/pub", "{own}", "{out}"],
    "output of repack": ["repack", "{own}", HOST + "/new.safetensors"],
    "verify": ["verify", "{own}", "--against", HOST + "/sums.json"],
    "record": ["verify", "{own}", "--record", HOST + "/new.json"],
    "diff": ["diff", "{own}", "{own}", "--out", HOST + "/new.safetensors"],
    "slice": ["slice", "{own}", "w", "-o", HOST + "/new.bin"],
    "picture": ["verify", "{own}", "--svg", HOST + "/new.svg"],
    "sample": ["sample", HOST + "/new.safetensors"],
    "commit": ["commit", "--base", "{own}", "--into", HOST + "/new.safetensors", "{planted_delta}"],
    "pull": ["pull", "--status", "{own}", HOST + "/pub"],
    "pull into": ["pull", HOST + "/pub", "{own}"],
    "metadata": ["set", "{own}", "--metadata", f"key=@{HOST}/w.bin"],
    "rules": ["upload", "{own}", "--dry-run", "--device", f"@{HOST}/rules.txt"],
    "socket": ["serve", "{own}", "--device", "cpu", "--socket", HOST + "/new.sock"],
    "top": ["top", "--once", HOST + "/pub"],
    "umount": ["umount", HOST + "/pub"],
    "another scheme": ["put", "{own}", "w", "gs://good.invalid/w.bin"],
    "delta of a mount": ["-f", "-o", f"delta={HOST}/delta.safetensors", "{own}", "{point}"],
    "new delta of a mount": ["-f", "-o", f"delta={HOST}/new.safetensors", "{own}", "{point}"],
    "log of a mount": ["-f", "-o", f"log={HOST}/new.log", "{own}", "{point}"],
    "mount point": ["-f", "{own}", HOST + "/pub"],
}


@pytest.fixture
def place(planted_ground):
    directory, ground = planted_ground
    for tool in ("stfs", "safetensorsfs"):
        shutil.copy2(BUILD / tool, directory / tool)
    own, work = directory / "own.safetensors", ground / "work"
    archive_file.save_with_reference(own, OWN)
    archive_file.save_with_reference(directory / "other.safetensors", PLANTED)
    work.mkdir()
    work.chmod(0o777)
    made = subprocess.run([directory / "stfs", "diff", "-q", "--out", directory / "d.safetensors", own,
                           directory / "other.safetensors"], capture_output=True, text=True)
    assert made.returncode in (0, 1) and (directory / "d.safetensors").exists(), made.stderr
    as_mallory('''cd "$1"
        for host in https:/good.invalid gs:/good.invalid; do
            mkdir -p "$host/pub"
            printf 0123456789abcdef > "$host/w.bin"
            cp "$host/w.bin" "$host/w.npy"
            cp "$2" "$host/delta.safetensors"
            echo "* cpu" > "$host/rules.txt"
            echo "{}" > "$host/sums.json"
        done
        : > https''', work, directory / "d.safetensors")
    (directory / "point").mkdir()
    return directory, work


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_an_address_is_no_path_below_the_working_directory(place, words):
    directory, work = place
    own = directory / "own.safetensors"
    before = own.read_bytes()
    planted = {(str(path), path.is_dir() or path.read_bytes()) for path in work.rglob("*")}
    words = [word.format(own=own, out=directory / "out.safetensors", point=directory / "point",
                         planted_delta=directory / "d.safetensors") for word in words]
    tool = directory / ("safetensorsfs" if words[0] == "-f" else "stfs")
    done = subprocess.run([tool, *words], cwd=work, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "must be on this machine" in done.stderr, done
    assert own.read_bytes() == before and not (directory / "out.safetensors").exists()
    assert {(str(path), path.is_dir() or path.read_bytes()) for path in work.rglob("*")} == planted
    assert all(os.lstat(path).st_uid == MALLORY for path in work.rglob("*"))


def test_an_archive_at_an_address_is_not_the_one_below_the_working_directory(place):
    directory, work = place
    own = directory / "own.safetensors"
    before = own.read_bytes()
    for words in (["apply", own, HOST + "/delta.safetensors"], ["apply", own, HOST + "/pub"], ["info", HOST + "/delta.safetensors"]):
        done = subprocess.run([directory / "stfs", *words], cwd=work, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and done.stderr, done
    assert own.read_bytes() == before


def test_a_path_with_a_point_before_it_is_local(place):
    directory, work = place
    done = subprocess.run([directory / "stfs", "put", directory / "own.safetensors", "w", "./https://good.invalid/w.bin"],
                          cwd=work, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (directory / "own.safetensors").read_bytes().endswith(b"0123456789abcdef")
