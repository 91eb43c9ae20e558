# Small commits beside a large one of another tensor of the same archive.
import os
import threading

import archive_file
import pytest

LARGE_BYTES = (64 << 20) + 5
SMALL_BYTES = 4096
PIECE_BYTES = 8 << 20
TRIES = 20


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "model.safetensors"
    archive_file.write_bytes_tensors(path, {
        "large": archive_file.random_bytes(LARGE_BYTES, 1), "near": archive_file.random_bytes(100, 2),
        "pad": archive_file.random_bytes(2 * SMALL_BYTES, 3), "small": archive_file.random_bytes(SMALL_BYTES, 4)})
    return archive_file.ArchiveFile(path)


class LargeCommit(threading.Thread):
    """Writes the whole large tensor. The close takes long."""

    def __init__(self, path, data):
        super().__init__()
        self.path, self.data = path, data
        self.closes, self.is_done = threading.Event(), threading.Event()

    def run(self):
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            for at in range(0, len(self.data), PIECE_BYTES):
                os.pwrite(descriptor, self.data[at:at + PIECE_BYTES], at)
        finally:
            self.closes.set()
            os.close(descriptor)
            self.is_done.set()


def journals_of_its_own(archive):
    """The journals beside an archive that are committed and not yet applied, without those of small commits."""
    directory, name = os.path.split(archive.path)
    start = f".{name}.stj."
    return {entry for entry in os.listdir(directory)
            if entry.startswith(start) and not entry.endswith((".standing", ".staged"))}


@pytest.mark.parametrize("durability", ("power", "process"))
def test_small_commits_end_while_a_large_one_is_applied(archive, mounts, durability):
    mount = mounts(archive.path, f"durability={durability}")
    expected = archive_file.Expectation(archive)

    def commit_small(seed):
        small = archive_file.random_bytes(SMALL_BYTES, seed)
        (mount / "small").write_bytes(small)
        assert (mount / "small").read_bytes() == small
        expected.change("small", small)

    for seed in range(5):  # from then on they need no journal of their own
        commit_small(seed)
    inside = 0
    for number in range(TRIES):
        large = archive_file.random_bytes(LARGE_BYTES, 100 + number)
        thread = LargeCommit(mount / "large", large)
        thread.start()
        thread.closes.wait()
        while not thread.is_done.is_set():
            before = journals_of_its_own(archive)
            commit_small(1000 + number)
            # Its journal was there before this commit, and is there after it.
            inside += bool(before & journals_of_its_own(archive))
        thread.join()
        expected.change("large", large)
        expected.check()
        assert (mount / "large").read_bytes() == large
        if inside:
            break
    assert inside
    assert "another program" not in mount.log()


def test_what_shares_a_block_with_a_large_commit_comes_out_whole(archive, mounts):
    mount = mounts(archive.path)
    expected = archive_file.Expectation(archive)
    large = archive_file.random_bytes(LARGE_BYTES, 100)
    thread = LargeCommit(mount / "large", large)
    thread.start()
    thread.closes.wait()
    for seed in range(3):
        near = archive_file.random_bytes(100, 200 + seed)
        (mount / "near").write_bytes(near)
        expected.change("near", near)
    thread.join()
    expected.change("large", large)
    expected.check()
