# -o io=: archives that are read and not mapped, as on NFS. All promises of a mount hold in both ways, so this file runs tests of
# other files again, on mounts with io=pread. An archive on FUSE is not mapped by default.
import errno
import json
import os
import random
import time

import numpy as np
import pytest
from archive_file import ArchiveFile, random_bytes, write_bytes_tensors
from mounted import eventually
from sharded_model import ShardedModel, read_archive_view
from test_change_underneath import (  # noqa: F401
    errno_of, in_order, test_a_cut_archive_gives_eio_where_it_is_cut_and_bytes_elsewhere,
    test_a_deleted_archive_is_read_to_its_end, test_a_mapping_of_a_cut_tensor_is_sigbus_for_the_reader_only,
    test_a_write_into_a_cut_archive_fails_and_does_not_grow_it,
    test_an_archive_cut_into_its_header_never_shows_zeros)
from test_change_underneath import read_direct as read_whole
from test_reads import *  # noqa: F401,F403
from test_recovery import LEAVE_JOURNAL, Left
from test_slices import arrays, test_random_slices_are_numpys  # noqa: F401
from test_transactions import (  # noqa: F401
    test_every_way_to_write_a_file_stages, test_mv_changes_all_tensors_at_once)

pytestmark = pytest.mark.library

MIB = 1 << 20


@pytest.fixture
def mounts(mounts):  # noqa: F811
    """As everywhere, with io=pread where a test says nothing else of it."""

    def make(source, options="", **kwargs):
        if "io=" not in options:
            options += ",io=pread"
        return mounts(source, options, **kwargs)

    return make


def maps(mount):
    """Files that the daemon has mapped."""
    with open(f"/proc/{mount.process.pid}/maps") as table:
        return {line.split(maxsplit=5)[5].rstrip("\n") for line in table if len(line.split(maxsplit=5)) == 6}


def whole_archive(mount):
    return mount / ".safetensors" / "archive.safetensors"


@pytest.mark.parametrize("options, is_mapped", [("io=auto", True), ("io=mmap", True), ("io=pread", False)])
def test_io_says_whether_the_archive_is_mapped(archive, mounts, options, is_mapped):
    with open("/proc/self/mounts") as table:
        local = [line.split()[1] for line in table if line.split()[2] in ("ext4", "xfs", "btrfs", "tmpfs", "overlay")]
    if options == "io=auto" and not any(archive.path.startswith(place.rstrip("/") + "/") for place in local):
        pytest.skip("the temporary files lie on no local file system that this test knows")
    mount = mounts(archive.path, options)
    for name in archive.layout():
        assert (mount / name).read_bytes() == archive.tensor(name), name
    assert (archive.path in maps(mount)) == is_mapped
    assert "lies on" not in mount.log()


def test_a_patch_is_seen_everywhere(mount, expected):
    for seed, name in enumerate(["layers.0.weight", "odd", "embed"]):
        data = random_bytes(expected.size(name), seed)
        (mount / name).write_bytes(data)
        expected.change(name, data)
        part = random_bytes(100, seed + 50)
        with open(mount / name, "r+b") as tensor:
            tensor.seek(777)
            tensor.write(part)
        expected.change(name, part, 777)
        assert (mount / name).read_bytes() == expected.tensor(name)
        assert read_whole(mount / name) == expected.tensor(name)
    expected.check()
    assert read_archive_view(whole_archive(mount)) == mount.archive.reference()


def test_what_somebody_else_writes_is_seen(mount, expected):
    name = "layers.1.weight"
    assert (mount / name).read_bytes() == expected.tensor(name)
    data = random_bytes(expected.size(name), 5)
    expected.change(name, data)
    with open(mount.archive.path, "r+b") as file:
        file.seek(expected.layout[name][2])
        file.write(data)
    assert eventually(lambda: (mount / name).read_bytes() == data)
    assert read_whole(mount / name) == data


@pytest.mark.skipif(not LEAVE_JOURNAL.exists(), reason=f"{LEAVE_JOURNAL} is not built")
def test_a_dead_owners_commit_is_shown_out_of_its_journal_or_applied(tmp_path, mounts):
    contents = {name: random_bytes(20_000, ord(name)) for name in "abc"}
    archive = ArchiveFile(write_bytes_tensors(tmp_path / "left.safetensors", contents))
    left = Left(archive)
    for options in ("ro", ""):
        mount = mounts(archive.path, options)
        for name in "abc":
            assert (mount / name).read_bytes() == left.new.tensor(name), (options, name)
        (left.old if options == "ro" else left.new).check()
    assert not os.path.exists(left.path)


def test_a_sharded_model_and_its_views(tmp_path, mounts):
    model = ShardedModel(tmp_path / "sharded")
    mount = mounts(model.directory)
    assert read_archive_view(whole_archive(mount)) == model.reference()
    assert np.load(mount / ".safetensors" / "npy" / "layers.0.weight.npy").tobytes() == model.stored("layers.0.weight")
    assert not [path for path in maps(mount) if path.startswith(str(model.directory))]


# ---- on FUSE: the whole archive that one mount shows is the source of another ----

@pytest.fixture
def stacked(archive, mounts):
    lower = mounts(archive.path)
    upper = mounts(whole_archive(lower), "io=auto")
    upper.lower = lower
    return upper


def test_an_archive_on_fuse_is_not_mapped_and_the_log_says_so(stacked, archive):
    assert str(whole_archive(stacked.lower)) not in maps(stacked)
    assert "archive.safetensors: lies on FUSE: read, not mapped (io=pread)" in stacked.log()
    for name in archive.layout():
        assert (stacked / name).read_bytes() == archive.tensor(name), name
        assert read_whole(stacked / name) == archive.tensor(name), name
    assert errno_of(lambda: (stacked / "odd").write_bytes(b"x")) == errno.EROFS


def test_of_a_model_on_fuse_one_line_says_so(tmp_path, mounts):
    for name in "abc":
        write_bytes_tensors(tmp_path / f"{name}.safetensors", {"t": name.encode() * 9})
    views = tmp_path / "views"
    views.mkdir()
    for name in "abc":
        os.symlink(whole_archive(mounts(tmp_path / f"{name}.safetensors", "io=mmap")), views / f"{name}.safetensors")
    (views / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"t": "a.safetensors"}}))
    upper = mounts(views, "io=auto")
    assert (upper / "t").read_bytes() == b"a" * 9
    assert upper.log().count("lies on FUSE") == 1


def test_a_map_on_fuse_is_there_for_who_insists(stacked, mounts, archive):
    insisting = mounts(whole_archive(stacked.lower), "ro,io=mmap")
    assert str(whole_archive(stacked.lower)) in maps(insisting)
    assert (insisting / "odd").read_bytes() == archive.tensor("odd")
    assert "lies on" not in insisting.log()


def test_a_store_that_fails_is_eio_and_the_mount_lives_on(stacked, archive):
    """A program that has mapped such a file gets SIGBUS."""
    name = "layers.1.weight"
    _, _, begin, _ = archive.layout()[name]
    os.truncate(archive.path, begin + 5)
    assert errno_of(read_whole, stacked / name) == errno.EIO
    assert (stacked / "scalar").stat().st_size == 4
    assert stacked.process.poll() is None
    assert eventually(lambda: "can't be read" in stacked.log())


def test_a_patch_below_is_seen_above(stacked, archive):
    data = random_bytes(archive.size("odd"), 9)
    (stacked.lower / "odd").write_bytes(data)
    assert eventually(lambda: read_whole(stacked / "odd") == data)


def served_bytes(mount):
    return json.loads((mount / ".safetensors" / "stats.json").read_text())["bytes_read"]


def test_reads_in_order_are_fetched_ahead_and_others_are_not(tmp_path, mounts, open_fd):
    size_bytes = 64 * MIB
    contents = {"long": random_bytes(size_bytes, 3)}
    lower = mounts(write_bytes_tensors(tmp_path / "long.safetensors", contents), "ro,io=mmap")
    upper = mounts(whole_archive(lower), "ro,io=auto")
    fd = open_fd(upper / "long", os.O_RDONLY | os.O_DIRECT)
    randomly, before, read = random.Random(1), served_bytes(lower), 0
    for _ in range(64):
        read += len(os.pread(fd, 4096, randomly.randrange(size_bytes // 2 // 4096) * 4096))
    # The kernel reads at most 128 KiB ahead for each read.
    assert served_bytes(lower) - before <= read + 64 * 128 * 1024
    before = served_bytes(lower)
    for at in range(size_bytes // 2, size_bytes // 2 + 2 * MIB, 512 * 1024):
        assert os.pread(fd, 512 * 1024, at) == contents["long"][at:at + 512 * 1024]
    for _ in range(30):  # and no more: each check also reads a page
        served = served_bytes(lower) - before
        if served >= (2 + 4) * MIB:
            return
        time.sleep(0.1)
    pytest.fail(f"{served} bytes were read below, 2 MiB above, and 4 MiB more were to be fetched")
