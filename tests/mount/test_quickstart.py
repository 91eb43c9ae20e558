# packaging/quickstart from its first line to the mount, and the commands that it suggests next. It runs in a copy of the tree
# at the same path, so that it uses the existing build, and without a network.
import json
import os
import re
import shutil
import subprocess

import mount_namespace
import pytest
from mounted import BUILD, PATIENCE, REPOSITORY

pytestmark = [
    pytest.mark.once, pytest.mark.needs_root,
    pytest.mark.skipif(BUILD != REPOSITORY / "build" / "release", reason="quickstart builds build/release")]

NEXT = """What to do next
  ls {mnt}
                                     list all tensors
  od -A d -t x1 -N 48 {mnt}/{tensor}
                                     the bytes of the tensor
  getfattr -d {mnt}/{tensor}
                                     its dtype and shape, its archive and its offset
  cp {mnt}/{tensor} ~/layer.bin
  dd if=$HOME/layer.bin of={mnt}/{tensor} bs=1M conv=notrunc
                                     copy a tensor, and replace it: with exactly its size, completely or not at all
  {stfs} ls {archive}
                                     names, dtypes, shapes and sizes, without a mount
  fusermount3 -u {mnt}
                                     unmount
The manual:  man {root}/packaging/man/safetensorsfs.8
"""


@pytest.fixture
def copy(tmp_path):
    """copy(SCRIPT) runs a script at the tree's root; what it writes there is gone afterwards."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare for a copy of the tree")
    for name in ("upper", "work", "lower"):
        (tmp_path / name).mkdir()
    # The temporary files stay where they are, and no sample of the real tree is in the copy.
    before = (f"mount --bind '{REPOSITORY}' '{tmp_path}/lower' && mount -t overlay overlay "
              f"-o 'lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work' '{REPOSITORY}' && "
              f"cd '{REPOSITORY}' && rm -rf build/sample")
    namespace = mount_namespace.in_namespace(before, "--net")
    probe = subprocess.run([*namespace, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"no copy of the tree can be mounted here: {probe.stderr.strip()}")

    def run(script):
        return subprocess.run([*namespace, "bash", "-c", script], capture_output=True, text=True, cwd=tmp_path,
                              timeout=120 * PATIENCE)

    return run


def sections(text, *marks):
    """What a script printed, cut at lines that it was told to print."""
    return re.split("|".join(f"{mark}\n" for mark in marks), text)


def test_quickstart_builds_mounts_and_shows_what_to_do(copy):
    done = copy("packaging/quickstart && echo AGAIN && packaging/quickstart && echo MOUNTED && "
                "ls -A build/sample/mnt | wc -l && build/release/stfs info --json build/sample/model.safetensors && "
                "fusermount3 -u build/sample/mnt")
    assert (done.returncode, done.stderr) == (0, ""), done
    first, again, counts = sections(done.stdout, "AGAIN", "MOUNTED")
    sample = REPOSITORY / "build" / "sample"
    steps = ("\n[1/4] Packages\n  all packages are installed\n"
             "\n[2/4] Build, into build/release (a few minutes the first time)\n"
             "BUILD  build/release/safetensorsfs and build/release/stfs are ready\n"
             f"\n[3/4] Model\n  {sample}/model.safetensors\n"
             "\n[4/4] Mount\n")
    shown, document = counts.split("\n", 1)
    listed = json.loads(document)["tensors"]
    assert int(shown) == listed > 5
    for text, mounted in ((first, f"  {sample}/model.safetensors is now at {sample}/mnt\n"),
                          (again, f"  {sample}/mnt: already mounted\n")):
        begin, _, rest = text.partition("Some of its")
        # The output of the build depends on the files that are built already.
        begin = re.sub(r"(the first time\)\n)(?:  .*\n)*?(  build/release/safetensorsfs and)", r"\1BUILD\2", begin)
        assert begin == steps + mounted + "\n"
        table, _, rest = rest.partition("\n\nThe attributes of one of them, by  getfattr -d :\n")
        files = re.findall(r"^  -rw-\S+ .* (\S+)$", table, re.M)
        assert table.startswith(f" {listed} entries, by  ls -l :\n") and len(files) == len(table.splitlines()) - 1 > 0
        told, _, rest = rest.partition("\n\n")
        lines = dict(line.strip().split("=", 1) for line in told.splitlines())
        assert {"name", "dtype", "shape", "archive", "offset", "generation"} == {
            key.removeprefix("user.safetensors.") for key in lines}
        assert lines["user.safetensors.name"] == f'"{files[0]}"'
        assert lines["user.safetensors.archive"] == f'"{sample}/model.safetensors"'
        assert rest == NEXT.format(mnt=f"{sample}/mnt", tensor=files[0], stfs="build/release/stfs",
                                   archive=f"{sample}/model.safetensors", root=REPOSITORY)


def test_what_quickstart_tells_to_type_works(copy, tmp_path):
    made = subprocess.run([BUILD / "stfs", "sample", tmp_path / "my model.safetensors"], capture_output=True)
    assert made.returncode == 0
    place = f"'{tmp_path}/my model.safetensors' '{tmp_path}/a mount'"
    # The manual is for a person; all else is typed as it is told, in another home.
    done = copy(f"packaging/quickstart {place} > '{tmp_path}/told' || exit 1; set -e; "
                f"grep -E '^  (ls|od|getfattr|cp|dd|build/release/stfs|fusermount3) ' '{tmp_path}/told' | "
                f"cat > '{tmp_path}/typed'; HOME='{tmp_path}' bash -e '{tmp_path}/typed'")
    assert done.returncode == 0, done
    typed = (tmp_path / "typed").read_text().splitlines()
    assert [line.split()[0] for line in typed] == ["ls", "od", "getfattr", "cp", "dd", "build/release/stfs", "fusermount3"]
    assert not os.listdir(tmp_path / "a mount")
    assert "user.safetensors.shape" in done.stdout and "0000048" in done.stdout
