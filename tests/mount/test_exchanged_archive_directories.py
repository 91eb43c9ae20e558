# Mallory exchanges the directory of an archive for a link to a private directory of Alice, while root's mount or tool has the
# archive open. Journals, staged bytes, the index and the state of a pull stay in the directory that has the archive: nothing
# changes in Alice's directory.
import errno
import hashlib
import json
import os
import shutil

import pytest
import test_exchanged_link_targets as link_targets
from archive_file import random_array, random_bytes
from attacker import Attacker
from edited_mount import content, u8
from mounted import BUILD, PATIENCE, errno_of, eventually
from published_weights import INDEX, Trainer, save, version_directory
from test_journal_users import ALICE, is_run_by
from test_mounted_places import silent_mount
from test_planted_files import MALLORY, as_mallory
from test_planted_syncs import own

pytestmark = pytest.mark.needs_root

STFS = BUILD / "stfs"
WAIT = 60 * PATIENCE
ARCHIVE = "model.safetensors"
SIZE = 20_000
TENSORS = {name: random_array("u1", (SIZE,), ord(name)) for name in "abcd"}
# More bytes than a mount keeps in memory before it makes a file for them.
LARGE = 16 << 20
MIB = 1 << 20

BEHIND_A_LINK = 'cd "$1" && mv v1 v1x && ln -sfn v1x cur && ln -s "$2" v1'
IN_THE_PATH = 'cd "$1" && mv v1 v1x && ln -s "$2" v1'
EXCHANGES = {"behind a link": ("cur", BEHIND_A_LINK), "in the path": ("v1", IN_THE_PATH)}
exchanges = pytest.mark.parametrize("named, exchange", EXCHANGES.values(), ids=EXCHANGES.keys())
sources = pytest.mark.parametrize("source", [ARCHIVE, "", INDEX], ids=["an archive", "a directory", "an index"])


def tree_of(path):
    """Each file and directory at and below a path: inode, mode, owner, time of change and content."""
    found = {}
    for at in (path, *sorted(path.rglob("*"))):
        status = at.lstat()
        digest = hashlib.sha256(at.read_bytes()).hexdigest() if at.is_file() and not at.is_symlink() else None
        found[str(at)] = (status.st_ino, oct(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns, digest)
    return found


def stored(directory):
    """{name: (dtype, shape, bytes)} of all archives in a directory."""
    found = {}
    for archive in sorted(directory.glob("*.safetensors")):
        found.update(content(archive))
    return found


def names_in_index(directory):
    return set(json.loads((directory / INDEX).read_text())["weight_map"])


def run_stfs(*words):
    return is_run_by(0, 0, [STFS, *map(str, words)], timeout=WAIT)


class Scene:
    """Mallory's directory, and Alice's private one: on another file system if Mallory's is on a tmpfs."""

    def __init__(self, directory, ground, mounts):
        self.own, self.private, self.published = ground / "own", directory / "private", ground / "published"
        self.own.mkdir()
        own(self.own, MALLORY)
        self.mounts = mounts
        self.point = directory / "mnt"
        self.point.mkdir()

    def save(self, tensors, shards):
        """The same model as own/v1, to which cur leads, and in the private directory."""
        save(self.own / "v1", tensors, shards)
        own(self.own, MALLORY)
        as_mallory('ln -s v1 "$1/cur"', self.own)
        self.keep_private(self.own / "v1")

    def keep_private(self, model):
        """Alice has a copy of the directory of the model."""
        shutil.copytree(model, self.private)
        own(self.private, ALICE)
        self.private.chmod(0o700)

    def mount(self, source):
        return self.mounts(source, "allow_other", path=self.point)

    def exchange(self, script):
        """Returns the directory that has the archives now."""
        as_mallory(script, self.own, self.private)
        return self.own / "v1x"


@pytest.fixture
def scene(planted_ground, mounts):
    return Scene(*planted_ground, mounts)


@pytest.fixture
def mallory():
    attacker = Attacker(MALLORY)
    yield attacker
    attacker.stop()


# --- mounts -----------------------------------------------------------------------------------------------


MAKE = 'cat > "$1" && setfattr -n user.safetensors.dtype -v U8 "$1" && setfattr -n user.safetensors.shape -v "[$2]" "$1"'


def changes_through(mount):
    """(command, its input, what it changes in the archives) of each change."""
    first, second, new = (random_bytes(SIZE, seed) for seed in (11, 12, 13))
    write = ["dd", f"of={mount / 'a'}", f"bs={SIZE}", "iflag=fullblock", "conv=notrunc", "status=none"]
    return [(write, first, lambda due: due.update(a=u8(first))),
            (write, second, lambda due: due.update(a=u8(second))),
            (["mv", mount / "b", mount / "renamed"], b"", lambda due: due.update(renamed=due.pop("b"))),
            (["rm", mount / "c"], b"", lambda due: due.pop("c")),
            (["sh", "-c", MAKE, "sh", mount / "new", SIZE], new, lambda due: due.update(new=u8(new)))]


@exchanges
@sources
def test_changes_through_a_mount_are_in_the_moved_directory_or_refused(scene, named, exchange, source):
    scene.save(TENSORS, 1 if source == ARCHIVE else 2)
    mount = scene.mount(scene.own / named / source)
    due = stored(scene.own / "v1")
    assert (mount / "a").read_bytes() == due["a"][2]
    before = tree_of(scene.private)
    moved = scene.exchange(exchange)
    for command, data, change in changes_through(mount):
        done = is_run_by(MALLORY, MALLORY, list(map(str, command)), text=False, input=data, timeout=WAIT)
        if done.returncode == 0:
            change(due)
        elif named == "cur" and command[0] != "sh":  # the path still leads to the archive
            # By their paths, the index and the shards are in different directories.
            assert any(why in done.stderr for why in (b"Stale file handle", b"Operation not supported")), done
        assert tree_of(scene.private) == before, done
        assert stored(moved) == due, done
        if source != ARCHIVE:
            assert names_in_index(moved) == set(due), done
    assert mount.unmount() == 0
    assert tree_of(scene.private) == before
    assert stored(moved) == due


@exchanges
def test_bytes_that_wait_for_a_close_fill_no_other_directory(scene, named, exchange):
    scene.save({"large": random_array("u1", (LARGE,), 1)}, 1)
    mount = scene.mount(scene.own / named / ARCHIVE)
    due = stored(scene.own / "v1")
    before = tree_of(scene.private)

    def write(data, *scripts):
        with open(mount / "large", "r+b", buffering=0) as file:
            for script in scripts:
                scene.exchange(script)
            for at in range(0, LARGE, MIB):
                file.write(data[at:at + MIB])
            assert not [path for path in mount.descriptors() if path.startswith(f"{scene.private}/")]

    for seed, scripts in ((2, [exchange]), (3, [])):
        data = random_bytes(LARGE, seed)
        refused = errno_of(write, data, *scripts)
        if refused == 0:
            due["large"] = u8(data)
        elif named == "cur":
            assert refused == errno.ESTALE
        assert stored(scene.own / "v1x") == due
        assert tree_of(scene.private) == before
    assert mount.unmount() == 0
    assert tree_of(scene.private) == before


# --- tools ------------------------------------------------------------------------------------------------


# Counts events of files whose name has the part, in the directories. Renames when more than `passed` have happened.
EXCHANGE = """
import ctypes, json, select
directories, part, passed, renames = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
events = libc.inotify_init1(0)
for directory in directories:
    if libc.inotify_add_watch(events, os.fsencode(directory), 0xfff) < 0:  # IN_ALL_EVENTS
        sys.exit(f"{directory}: {os.strerror(ctypes.get_errno())}")
poll = select.poll()
for descriptor in (events, 0):
    poll.register(descriptor, select.POLLIN)
print("ready", flush=True)
while passed >= 0:
    ready = [descriptor for descriptor, _ in poll.poll()]
    if events not in ready:
        break  # the test has ended the input
    seen = os.read(events, 65536)
    while seen:
        length = struct.unpack_from("iIII", seen)[3]
        passed -= os.fsencode(part) in seen[16:16 + length]
        seen = seen[16 + length:]
else:
    for old, new in renames:
        os.rename(old, new)
"""


def start_exchange(mallory, directories, part, passed, renames):
    words = [[*map(str, directories)], part, passed, [[str(old), str(new)] for old, new in renames]]
    return mallory.does(EXCHANGE, json.dumps(words))


def test_a_tool_replaces_no_index_of_another_directory(scene, mallory):
    scene.save(TENSORS, 2)
    before = tree_of(scene.private)
    for number in range(5):
        model, moved, link = (scene.own / f"m{number}{suffix}" for suffix in ("", ".moved", ".link"))
        as_mallory('cp -r "$1" "$2" && ln -s "$3" "$4"', scene.own / "v1", model, scene.private, link)
        start_exchange(mallory, [model], ".stj.", number // 2, [(model, moved), (link, model)])
        done = run_stfs("mv", model, "a", "renamed")
        mallory.stop()
        assert tree_of(scene.private) == before, done
        is_exchanged = moved.exists()
        assert done.returncode == 0 or (done.returncode == 1 and is_exchanged), done
        if done.returncode == 0:
            where = moved if is_exchanged else model
            assert "renamed" in names_in_index(where) & stored(where).keys(), done


STATES = {MALLORY: {"version": "000000", "model": ARCHIVE, "brought": ["Makefile"], "note": "Mallory's"},
          ALICE: {"version": "000000", "model": ARCHIVE, "note": "Alice's"}}
# A part of a file's name, and how many events of such files pass before the exchange.
MOMENTS = [*(("", passed) for passed in (0, 1, 2, 4, 8, 16, 32, 64)), (ARCHIVE, 0), (".stj.", 0), (".stj.", 1),
           ("lock", 0), ("state.json", 0), ("state.json", 1)]


def write_state(model, state):
    (model / ".weight_sync").mkdir(exist_ok=True)
    (model / ".weight_sync/state.json").write_text(json.dumps(state))


def test_a_pull_writes_no_state_of_another_directory(scene, mallory):
    tensors = {"a": random_array("f4", (1 << 20,), 1), "b": random_array("f2", (4001,), 2)}
    trainer = Trainer(scene.published, save(version_directory(scene.published, 0), tensors))
    full = scene.own / "full"
    save(full, tensors)
    write_state(full, STATES[ALICE])
    scene.keep_private(full)
    write_state(full, STATES[MALLORY])
    own(full, MALLORY)
    trainer.step()
    before = tree_of(scene.private)
    for number, (part, passed) in enumerate(MOMENTS):
        base = scene.own / f"round{number}"
        as_mallory('mkdir "$1" && cp -r "$2" "$1/v1" && cd "$1" && ln -s v1 cur && ln -s v1x cur.new && ln -s "$3" link', base,
                   full, scene.private)
        here, moved = base / "v1", base / "v1x"
        start_exchange(mallory, [here, here / ".weight_sync"], part, passed,
                       [(here, moved), (base / "cur.new", base / "cur"), (base / "link", here)])
        done = run_stfs("pull", base / "cur", scene.published)
        mallory.stop()
        assert tree_of(scene.private) == before, (part, passed, done)
        is_exchanged = moved.exists()
        assert done.returncode == 0 or (done.returncode == 1 and is_exchanged), (part, passed, done)
        if "version 000001: changed" in done.stdout + done.stderr and done.returncode == 0:
            where = moved if is_exchanged else here
            assert trainer.version_of(where) == 1, (part, passed, done)
        shutil.rmtree(base)  # a small file system holds one of them


# --- changes that a mount follows -------------------------------------------------------------------------


def test_a_mount_that_does_not_answer_behind_a_link_of_a_links_path_stops_no_changes(planted_ground, mounts):
    scene = link_targets.Scene(*planted_ground, mounts)
    silent = scene.own / "silent"
    as_mallory('cd "$1" && mkdir v1 && cp d/x.safetensors v1 && ln -s v1 cur && ln -s "$1/cur/x.safetensors" "$2"', scene.own,
               scene.models / "am.safetensors")
    good = scene.models / "good.safetensors"
    mount = scene.mount()
    assert {"am", "good"} <= set(os.listdir(mount.path))
    assert (mount / "am" / "t").read_bytes() == b"bytes"
    shown = mount / "good" / "t"
    with silent_mount(silent, "allow_other"):
        as_mallory(BEHIND_A_LINK, scene.own, silent / "sub")
        for mode in ("600", "644", "600"):
            as_mallory('touch "$1"', scene.own / "v1x" / "x.safetensors")
            changed = scene.run(ALICE, 'chmod "$1" "$2"', mode, good)
            assert changed.returncode == 0, changed
            assert eventually(lambda due=f"{mode}\n": scene.run(0, 'stat -c %a "$1"', shown).stdout == due), mode
        assert scene.run(MALLORY, 'cat "$1"', shown).returncode != 0
        assert mount.unmount() == 0
