# Edits of the structure through a mount while other programs read, list and write: no program hangs, and each read shows one
# whole content. Readers keep deleted tensors that they have open; later the space is free again.
import contextlib
import errno
import mmap
import os
import random
import threading
import time

import pytest
from edited_mount import RENAME_EXCHANGE, EditedMount, content, renameat2, save, write_tensor
from mounted import PATIENCE, eventually

SECONDS = float(os.environ.get("STFS_RACE_SECONDS", 5))
SIZE = 50_001


def whole(seed):
    """A content with its number in each of its pieces."""
    return (b"%08d" % seed) * (SIZE // 8) + b"."


def is_whole(data):
    return len(data) == SIZE and data == data[:8] * (SIZE // 8) + b"."


def is_whole_by_pages(data):
    """Each page is of one content: while a mapping is read, a commit may come between two of its pages."""
    pages = [data[at:at + 4096] for at in range(0, SIZE - 1, 4096)]
    return len(data) == SIZE and all(page.rstrip(b".") == page[:8] * (len(page) // 8) for page in pages)


def read_past_cache(path):
    """In one request. Out of its cache the kernel copies page by page, and a commit may come between two."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.read(fd, SIZE + 4096)
    finally:
        os.close(fd)


class Race:
    """Threads that run until the end or the first failure."""

    def __init__(self, seconds):
        self.deadline = time.monotonic() + seconds
        self.problems = []
        self.counts = {}

    def is_over(self):
        return time.monotonic() > self.deadline or self.problems

    def loop(self, name, step, seed):
        rng = random.Random(seed)
        try:
            while not self.is_over():
                step(rng)
                self.counts[name] = self.counts.get(name, 0) + 1
        except BaseException as error:
            self.problems.append(f"{name}: {error!r}")

    def run(self, steps):
        threads = [threading.Thread(target=self.loop, args=(f"{step.__name__}{at}", step, at), daemon=True)
                   for at, step in enumerate(steps)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.1, self.deadline + 20 * PATIENCE - time.monotonic()))
        assert not self.problems, self.problems
        assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
        assert all(self.counts.get(f"{step.__name__}{at}") for at, step in enumerate(steps)), self.counts


@contextlib.contextmanager
def allowed(*errnos):
    try:
        yield
    except OSError as error:
        if error.errno not in errnos:
            raise


GONE = (errno.ENOENT, errno.ESTALE)


def racers(mount, names, numpy=True):
    """The work of other programs."""
    views = mount / ".safetensors"

    def read(rng):
        name = rng.choice(names)
        with allowed(errno.ENOENT):
            assert is_whole_by_pages((mount / name).read_bytes()), name
            data = read_past_cache(mount / name)
            assert is_whole(data), (name, len(data), data[:8], set(data[at:at + 8] for at in range(0, SIZE - 1, 8)))

    def read_mapped(rng):
        with allowed(errno.ENOENT):
            with open(mount / rng.choice(names), "rb") as file:
                with mmap.mmap(file.fileno(), SIZE, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                    assert is_whole_by_pages(mapped[:])

    def look(rng):
        with allowed(errno.ENOENT):
            assert os.stat(mount / rng.choice(names)).st_size == SIZE
        with allowed(errno.ENOENT, errno.ENODATA):  # a scratch file, which came to the name, has no shape
            os.getxattr(mount / rng.choice(names), "user.safetensors.shape")

    def list_(rng):
        for entry in os.scandir(mount.path):
            with allowed(errno.ENOENT):
                entry.stat(follow_symlinks=False)

    def read_npy(rng):
        with allowed(errno.ENOENT):
            data = read_past_cache(views / "npy" / f"{rng.choice(names)}.npy")
            assert is_whole(data[-SIZE:]), len(data)

    def read_all(rng):
        # Commits of bytes show in it between two requests of the reader; names and places are of one moment.
        for name, (_, _, data) in content(views / "archive.safetensors").items():
            assert len(data) == SIZE and data.endswith(b".") or name[0] != "t", (name, len(data))

    def write(rng):
        name, data = rng.choice(names), whole(rng.randrange(10**8))
        with allowed(*GONE):
            fd = os.open(mount / name, os.O_WRONLY)
            try:
                os.pwrite(fd, data, 0)
            finally:
                os.close(fd)

    return [read, read_mapped, look, list_, read_npy, read_all, write]


@pytest.mark.timeout(120 * PATIENCE)
def test_everything_at_once(tmp_path, mounts):
    names = [f"t{number}" for number in range(12)]
    path = tmp_path / "m.safetensors"
    save(path, {})
    mount = mounts(path)
    for name in names:
        write_tensor(mount / name, whole(1))

    def edit(rng):
        one, other = rng.sample(names, 2)
        what = rng.randrange(6)
        # EBUSY: a tensor that is being written is not replaced, nor moved.
        with allowed(errno.ENOENT, errno.EBUSY):
            if what == 0:
                os.unlink(mount / one)
            elif what == 1:
                os.rename(mount / one, mount / other)
            elif what == 2:
                # EINVAL: one of them is a scratch file.
                assert renameat2(mount / one, mount / other, RENAME_EXCHANGE) in (0, errno.ENOENT, errno.EBUSY, errno.EINVAL)
            elif what == 3:
                os.setxattr(mount / one, "user.safetensors.dtype", rng.choice([b"U8", b"I8", b"BOOL"]))
            elif what == 4:
                os.setxattr(mount.path, "user.safetensors.metadata.k", b"v" * rng.randrange(3000))
            else:
                (mount / "temporary").write_bytes(whole(rng.randrange(10**8)))
                os.rename(mount / "temporary", mount / one)

    def make(rng):
        name = f"n{rng.randrange(3)}"  # others see its bytes as they come
        with allowed(errno.ENOENT, errno.EBUSY):
            os.unlink(mount / name)
        with allowed(errno.EBUSY, errno.EEXIST):
            fd = os.open(mount / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            data = whole(rng.randrange(10**8))
            try:
                os.setxattr(fd, "user.safetensors.dtype", b"U8")
                os.setxattr(fd, "user.safetensors.shape", f"[{len(data)}]".encode())
                os.write(fd, data[:20_000])
                os.write(fd, data[20_000:])
            finally:
                os.close(fd)

    race = Race(SECONDS)
    race.run([edit, make, *racers(mount, names)])
    for scratch in set(os.listdir(mount.path)) - content(path).keys():
        os.unlink(mount / scratch)  # its rename, or its attributes, came too late
    found = content(path)
    assert all(is_whole(data) for _, _, data in found.values())
    assert eventually(lambda: sorted(os.listdir(mount.path)) == sorted(found))
    edited = EditedMount(mount, [path], found)
    edited.check()
    assert mount.unmount() == 0
    assert not [file for file in os.listdir(tmp_path) if file.startswith(".m.")]
    assert content(path) == found


def test_readers_keep_what_was_deleted_and_its_space_comes_back_after_them(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, {"first": 9000, "large": 8_000_000, "other": 70_000, "last": 50})
    mount = mounts(path)
    edited = EditedMount(mount, [path], due)
    os.setxattr(mount.path, "user.safetensors.metadata.room", b"")
    data, other, blocks = due["large"][2], due["other"][2], path.stat().st_blocks
    before = edited.view.read_bytes()
    with open(mount / "large", "rb") as reader, open(edited.view, "rb") as archive, open(edited.npy("other"), "rb") as npy:
        with mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ) as mapped, \
                mmap.mmap(archive.fileno(), 0, prot=mmap.PROT_READ) as whole_before:
            edited.remove("large")
            edited.rename("other", "renamed")
            edited.write("last", b"x" * 50)
            edited.write("new", os.urandom(2_000_000))
            assert mapped[:] == data
            assert os.pread(reader.fileno(), len(data), 0) == data
            assert npy.read()[-len(other):] == other
            # Its bytes of `last` may be the new ones: patches show.
            size = len(data)
            at = before.index(data[:64])
            assert whole_before[at:at + size] == data and len(whole_before) == len(before)
            assert whole_before[:2000] == before[:2000]
            edited.check()
            time.sleep(0.5)
            assert path.stat().st_blocks >= blocks
    assert eventually(lambda: blocks - path.stat().st_blocks > 5_500_000 // 512, 2)
    edited.check()


def test_the_space_of_what_nobody_reads_comes_back_at_once(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, {"first": 9000, "large": 8_000_000, "last": 50})
    edited = EditedMount(mounts(path), [path], due)
    blocks = path.stat().st_blocks
    edited.remove("large")
    assert eventually(lambda: blocks - path.stat().st_blocks > 7_900_000 // 512, 1)
    edited.mount.unmount()
    assert path.stat().st_size < 100_000  # the unmount closes the gap
    EditedMount(mounts(path, "ro"), [path], edited.due).check()
