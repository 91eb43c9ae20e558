# A caller may close standard input, output and error (`>&-`). An archive must not get the number of a closed stream, because
# the program's messages would be written into the archive.
import errno
import itertools
import os
import subprocess

import archive_file
import mounted
import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.library

STFS = mounted.BUILD / "stfs"
W = np.arange(12, dtype="f4").reshape(3, 4)
STREAMS = [closed for count in (1, 2, 3) for closed in itertools.combinations((0, 1, 2), count)]


def run_without(streams, command, **options):
    closing = " ".join(f"{stream}{'<' if stream == 0 else '>'}&-" for stream in streams)
    return subprocess.run(["bash", "-c", f'exec "$@" {closing}', "run", *map(str, command)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, **options)  # fmt: skip


@pytest.mark.parametrize("streams", STREAMS, ids=str)
def test_what_a_tool_says_goes_into_no_archive(tmp_path, streams):
    path, raw = tmp_path / "m.safetensors", tmp_path / "raw"
    archive_file.save_with_reference(path, {"w": W, "b": W + 1})
    raw.write_bytes((W + 7).tobytes())
    for arguments in (["set", path, "--metadata", "k=v"], ["put", path, "w", raw], ["mv", path, "b", "c"], ["verify", path],
                      ["ls", path]):
        done = run_without(streams, [STFS, *arguments])
        if 1 in streams:
            assert done.returncode == 1, arguments
            assert 2 in streams or os.strerror(errno.EBADF) in done.stderr
        else:
            assert done.returncode == 0, done.stderr
    tensors = load_file(path)
    assert sorted(tensors) == ["c", "w"]
    assert np.array_equal(tensors["c"], W + 1) and np.array_equal(tensors["w"], W + 7)


@pytest.mark.parametrize("streams", STREAMS, ids=str)
def test_a_mount_is_made_without_them(tmp_path, streams):
    path, point = tmp_path / "m.safetensors", tmp_path / "mnt"
    archive_file.save_with_reference(path, {"w": W})
    before = path.read_bytes()
    point.mkdir()
    done = run_without(streams, [mounted.BUILD / "safetensorsfs", path, point])
    assert done.returncode == 0, done.stderr
    try:
        assert (point / "w").read_bytes() == W.tobytes()
        (point / "w").write_bytes((W + 1).tobytes())
    finally:
        subprocess.run(["fusermount3", "-u", point], check=True)
    assert path.read_bytes() == before.replace(W.tobytes(), (W + 1).tobytes())
