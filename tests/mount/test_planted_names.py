# An unprivileged user plants names that look like journals' beside other users' archives: they stop no commit, and each opening
# only examines the name.
import ctypes
import json
import os
import subprocess

import attacker as attack
import pytest
from attack_fixtures import kind, mallory, scene  # noqa: F401

pytestmark = pytest.mark.needs_root

LEASE = """
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    os.fchmod(fd, 0o666)
    os.write(fd, bytes(8192))  # long enough for a commit
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
stay()
"""

ODD_FILES = """
where = sys.argv[1]
def name(number):
    return f"{where}{number:032x}"
os.mkfifo(name(1), 0o666)
os.mkdir(name(2), 0o777)
os.chdir(os.path.dirname(where))  # the path itself may be longer than an address
socket.socket(socket.AF_UNIX).bind(os.path.basename(name(3)))
os.symlink("/etc/shadow", name(4))
os.symlink(name(4), name(5))
os.close(os.open(name(6), os.O_CREAT | os.O_WRONLY, 0))
with open(name(7), "wb") as file:
    file.write(b"STFSJNL1" + bytes(1 << 20))
os.symlink("nowhere", name(8))
for suffix in (".standing", ".group", ".staged", ".group.staged", f".{0:016x}.index"):
    os.mkfifo(name(9) + suffix, 0o666)
    with open(name(10) + suffix, "wb") as file:
        file.write(os.urandom(5000))
stay()
"""

MANY = """
for number in range(int(sys.argv[2])):
    os.close(os.open(f"{sys.argv[1]}{number:032x}", os.O_CREAT | os.O_WRONLY, 0o666))
stay()
"""


def check_tools(scene, names):
    """All tools do their work, and each opening names one of the files."""
    for arguments in (["ls", scene.path], ["info", scene.path], ["cat", scene.path, "c"], ["verify", scene.path]):
        done = scene.run(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert any(name in done.stderr for name in names) and ": ignored: " in done.stderr, (arguments, done.stderr)
    for name in "ab":
        done = scene.put(name)
        assert done.returncode == 0, done.stderr
    scene.expected.check()


def check_mounts(scene, mounts, names):
    """Root's mounts come up, for reading and for writing, say why, and write."""
    reader = mounts(scene.path, "ro")
    assert sorted(os.listdir(reader.path)) == ["a", "b", "c"]
    assert any(name in reader.log() for name in names)
    mount = mounts(scene.path)
    scene.write(mount.path, "c")
    scene.expected.check()


def test_a_lease_on_a_planted_name_stops_nobody(scene, mallory, mounts):
    names = [scene.planted(1), scene.planted(2, ".standing"), scene.planted(3, ".group"), scene.planted(4, ".staged")]
    mallory.does(LEASE, *names)
    check_tools(scene, names)
    check_mounts(scene, mounts, names)


def test_files_of_every_type_under_planted_names_stop_nobody(scene, mallory, mounts):
    mallory.does(ODD_FILES, scene.planted()[:-32])
    names = [scene.planted()[:-32]]
    check_tools(scene, names)
    check_mounts(scene, mounts, names)


def test_a_thousand_planted_names_take_no_descriptors(scene, mallory, mounts):
    mallory.does(MANY, scene.planted()[:-32], 1100)
    few = ["prlimit", "--nofile=48:48", "--"]
    for arguments in (["ls", scene.path], ["info", scene.path]):
        done = scene.run(*arguments, before=few)
        assert done.returncode == 0, done.stderr
        assert "and 1097 more names that are no journals" in done.stderr
        assert len(done.stderr.splitlines()) == 4, done.stderr
    assert scene.put("a", before=few).returncode == 0
    scene.expected.check()
    mount = mounts(scene.path, before=["prlimit", "--nofile=64:64", "--"])
    scene.write(mount.path, "b")
    scene.expected.check()
    log = mount.log()
    assert "and 1090 more names that are no journals" in log
    assert log.count("ignored") == 10


def test_a_thousand_leftovers_of_a_dead_writer_take_few_descriptors(scene, kind):
    """The owner owns these files, so each must be examined."""
    for number in range(1100):
        path = scene.planted(number, ".staged")
        with open(path, "wb") as file:
            file.write(bytes(100))
        os.chown(path, scene.owner, scene.owner)
    few = ["prlimit", "--nofile=48:48", "--"]
    assert scene.run("ls", scene.path, before=few).returncode == 0
    done = scene.run("recover", scene.path, before=few)
    assert done.returncode == 0, done.stderr
    assert os.listdir(scene.archives) == ["model.safetensors"]
    scene.expected.check()


def test_recover_names_the_owner_of_each_planted_file(scene, mallory):
    mallory.does(MANY, scene.planted()[:-32], 3)
    done = scene.run("recover", scene.path)
    assert done.returncode == 1
    for number in range(3):
        assert f"{scene.planted(number)}: unknown: delete it" in done.stderr
    assert done.stdout.count(f"belongs to user {attack.MALLORY}, who may not write the archive") == 3
    scene.expected.check()


def test_a_planted_file_of_a_possible_writer_stops_writers_and_is_named(scene, mallory, mounts):
    """The group may write the archive, so a member may have left a commit there. Readers come up."""
    os.chmod(scene.path, 0o664)
    mallory.does(LEASE, scene.planted(1))
    done = scene.put("a")
    assert done.returncode == 1
    assert scene.planted(1) in done.stderr and f"belongs to user {attack.MALLORY}" in done.stderr
    shown = scene.run("ls", scene.path)
    assert [line for line in shown.stdout.splitlines() if line.startswith("a ")], shown
    assert scene.planted(1) in shown.stderr
    reader = mounts(scene.path, "ro")
    assert sorted(os.listdir(reader.path)) == ["a", "b", "c"]
    assert scene.planted(1) in reader.log()
    scene.expected.check()


def test_names_that_come_and_go_stop_nobody(scene, mallory, mounts):
    """Mallory makes, replaces and removes names of all kinds while others read and write."""
    mallory.does("""
import threading
where = sys.argv[1]
def churn(offset):
    number = offset
    while True:
        name = f"{where}{number % 40 + offset:032x}"
        number += 1
        try:
            if number % 5 == 0: os.unlink(name)
            elif number % 5 == 1: os.mkfifo(name)
            elif number % 5 == 2: os.symlink("/etc/passwd", name)
            elif number % 5 == 3: os.rename(f"{where}{(number + 3) % 40 + offset:032x}", name)
            else: os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError: pass
threading.Thread(target=churn, args=(0,), daemon=True).start()
threading.Thread(target=churn, args=(1000,), daemon=True).start()
stay()
""", scene.planted()[:-32])
    mount = mounts(scene.path)
    for round_ in range(300):
        scene.write(mount.path, "abc"[round_ % 3])
        if round_ % 20 == 0:
            for done in (scene.run("ls", scene.path), scene.put("abc"[round_ % 3])):
                assert done.returncode == 0, (round_, done.stderr)
    mallory.stop()
    scene.expected.check()


@pytest.fixture
def mount_on():
    """mount_on(FILE): a file system of Mallory's on a file, as fusermount3 makes it for every user. It never answers."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = []

    def make(path):
        device = os.open("/dev/fuse", os.O_RDWR)
        mounted.append((path, device))
        options = f"fd={device},rootmode=100000,user_id={attack.MALLORY},group_id={attack.MALLORY},allow_other"
        nosuid_nodev = 6
        if libc.mount(b"mallory", os.fsencode(path), b"fuse.mallory", nosuid_nodev, options.encode()) != 0:
            pytest.skip(f"mount: {os.strerror(ctypes.get_errno())}")

    yield make
    for path, device in mounted:
        os.close(device)  # ends all that wait
        subprocess.run(["umount", "-l", path], capture_output=True)


def test_a_file_system_on_a_planted_name_is_not_waited_for(scene, mallory, mounts, mount_on):
    mallory.does(MANY, scene.planted()[:-32], 1)
    mount_on(scene.planted(0))
    for arguments in (["ls", scene.path], ["info", scene.path], ["verify", scene.path], ["recover", scene.path]):
        done = scene.run(*arguments, timeout=100)
        assert scene.planted(0) in done.stderr, done.stderr
        assert done.returncode == (1 if arguments[0] == "recover" else 0)
    assert "another file system is mounted on it" in done.stdout
    done = scene.put("a", timeout=100)
    assert done.returncode == 0, done.stderr
    mount = mounts(scene.path)
    scene.write(mount.path, "c")
    scene.expected.check()


def test_an_index_that_names_a_strangers_file_with_a_lease_says_so(scene, mallory):
    other = os.path.join(scene.archives, "other.safetensors")
    with open(scene.path, "rb") as file:
        content = file.read()
    mallory.does("""
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
os.write(fd, open(sys.argv[2], "rb").read())
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
stay()
""", other, scene.path)
    assert len(content) > 3 * attack.BYTES
    index = os.path.join(scene.archives, "model.safetensors.index.json")
    with open(index, "w") as file:
        json.dump({"weight_map": {"a": "model.safetensors", "b": "model.safetensors", "c": "other.safetensors"}}, file)
    done = scene.run("ls", index, timeout=100)
    assert f"user {attack.MALLORY} or root holds a lease on it" in done.stderr, done.stderr
