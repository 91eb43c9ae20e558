# The limits of one user in a mount with allow_other: a user at the limit gets EDQUOT, and other users are not affected.
import errno
import os
import resource

import attacker as attack
import pytest
from archive_file import write_raw
from mounted import is_sanitized

pytestmark = pytest.mark.needs_root

TRANSACTIONS = """
where = sys.argv[1]
made = 0
try:
    while made < 5000:
        os.mkdir(f"{where}/mallory{made}")
        made += 1
except OSError as error:
    assert error.errno == 122, error  # EDQUOT
assert made == 1000, made
stay()
"""

METADATA = """
where = sys.argv[1]
os.mkdir(f"{where}/m")
os.mkdir(f"{where}/n")
made = 0
try:
    while made < 5000:
        os.setxattr(f"{where}/{'mn'[made % 2]}", f"user.safetensors.metadata.k{made}", bytes([97]) * 65000)
        made += 1
except OSError as error:
    assert error.errno == 122, error
assert 1500 < made < 1540, made
stay()
"""


SHAPES = """
where = sys.argv[1]
made = 0
try:
    while made < 100:
        os.mkdir(f"{where}/{made}")
        os.unlink(f"{where}/{made}/many")
        made += 1
except OSError as error:
    assert error.errno == 122, error
assert made in (12, 13), made
stay()
"""


@pytest.fixture(params=["disk", "tmpfs"])
def kind(request):
    return request.param


@pytest.fixture
def scene(kind):
    """Root's archive, which everybody may write."""
    for scene in attack.scene_in(kind, 0):
        os.chmod(scene.path, 0o666)
        yield scene


@pytest.fixture
def mallory():
    attacker = attack.Attacker()
    yield attacker
    attacker.stop()


@pytest.fixture
def alice():
    user = attack.Attacker(attack.ALICE)
    yield user
    user.stop()


OTHERS = """
where = sys.argv[1]
os.mkdir(f"{where}/alice")
os.setxattr(f"{where}/alice", "user.safetensors.metadata.note", b"x" * 65000)
with open(f"{where}/alice/a", "r+b") as file:
    file.write(b"alice")
os.rename(f"{where}/alice", f"{os.path.dirname(where)}/committed/alice")
stay()
"""


@pytest.mark.parametrize("script, said", [(TRANSACTIONS, "has 1000 open transactions"),
                                          (METADATA, "bytes of metadata, names and shapes in transactions")], ids=["transactions", "metadata"])
def test_a_user_at_the_limit_of_transactions_stops_nobody(scene, mallory, alice, mounts, script, said):
    mount = mounts(scene.path, "allow_other", path=scene.mount_point())
    transactions = mount / ".safetensors/transactions"
    mallory.does(script, transactions)
    assert f"user {attack.MALLORY} " in mount.log() and said in mount.log()
    alice.does(OTHERS, transactions)
    assert os.getxattr(mount.path, "user.safetensors.metadata.note") == b"x" * 65000
    assert (mount / "a").read_bytes()[:5] == b"alice"
    (transactions / "root").mkdir()


def test_shapes_in_transactions_count_as_metadata_do(scene, mallory, alice, mounts):
    # 8 MB for each transaction that stages the tensor: a million dimensions.
    header = b'{"many":{"dtype":"U8","shape":[%s1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[5],"data_offsets":[1,6]}}'
    header %= b"1," * (1_000_000 - 1)
    header += b" " * (-len(header) % 8)
    with open(scene.path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + b"123456")
    mount = mounts(scene.path, "allow_other", path=scene.mount_point())
    transactions = mount / ".safetensors/transactions"
    mallory.does(SHAPES, transactions)
    assert f"user {attack.MALLORY} " in mount.log() and "names and shapes in transactions" in mount.log()
    alice.does(OTHERS, transactions)
    assert (mount / "a").read_bytes() == b"alice"


WRITERS = """
where = sys.argv[1]
opened = []
try:
    while len(opened) < 1000:
        opened.append(os.open(f"{where}/a", os.O_WRONLY))
        os.write(opened[-1], b"x")
except OSError as error:
    assert error.errno == 122, error
assert len(opened) == 101, len(opened)
stay()
"""

SAVER = """
where = sys.argv[1]
with open(f"{where}/b", "r+b") as file:
    file.write(b"alice")
with open(f"{where}/note", "w") as file:
    file.write("alice")
stay()
"""


def test_a_user_who_keeps_many_writers_open_stops_nobody(scene, mallory, alice, mounts):
    mount = mounts(scene.path, "allow_other", path=scene.mount_point())
    hard = resource.prlimit(mount.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (400, hard))
    mallory.does(WRITERS, mount.path)
    assert f"user {attack.MALLORY} has 100 descriptors" in mount.log()
    alice.does(SAVER, mount.path)
    assert (mount / "b").read_bytes()[:5] == b"alice"
    assert (mount / "note").read_text() == "alice"
    mallory.stop()


CHECKPOINTS = """
where = sys.argv[1]
empty = struct.pack("<Q", 8) + b"{}      "
def make(name):
    fd = os.open(f"{where}/.tmp{os.getuid()}.{name}", os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.write(fd, empty)
    finally:
        os.close(fd)
made = 0
try:
    while made < 3000:
        make(made)
        made += 1
except OSError as error:
    assert error.errno == 122, error
assert made == 1024, made
os.remove(f"{where}/.tmp{os.getuid()}.0")
make(0)
stay()
"""


def resident_bytes(mount):
    with open(f"/proc/{mount.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_a_user_keeps_no_more_checkpoints_than_the_limit(scene, mallory, alice, mounts):
    mount = mounts(scene.path, "allow_other", path=scene.mount_point())
    before = resident_bytes(mount)
    mallory.does(CHECKPOINTS, mount / ".safetensors")
    assert f"user {attack.MALLORY} has 1024 checkpoints and NumPy files that are not committed" in mount.log()
    # Their buffers alone would take 70 MB. A sanitizer has memory of its own.
    assert is_sanitized() or resident_bytes(mount) - before < 40 << 20
    alice.does(CHECKPOINTS, mount / ".safetensors")


INDEXES = """
where = sys.argv[1]
opened = []
try:
    while len(opened) < 5:
        opened.append(os.open(f"{where}/.tmp{os.getuid()}.{len(opened)}.safetensors.index.json", os.O_WRONLY | os.O_CREAT, 0o666))
        os.ftruncate(opened[-1], 200 << 20)
except OSError as error:
    assert error.errno == 122, error
assert len(opened) == 2, len(opened)
stay()
"""

HEADERS = """
where = sys.argv[1]
opened = []
try:
    while len(opened) < 9:
        opened.append(os.open(f"{where}/.tmp{os.getuid()}.{len(opened)}", os.O_WRONLY | os.O_CREAT, 0o666))
        os.write(opened[-1], struct.pack("<Q", 90_000_000))
except OSError as error:
    assert error.errno == 122, error
assert len(opened) == 4, len(opened)
stay()
"""


@pytest.mark.parametrize("script", [INDEXES, HEADERS], ids=["indexes", "headers"])
def test_the_text_of_a_users_checkpoints_is_limited(scene, mallory, alice, mounts, script):
    mount = mounts(scene.path, "allow_other", path=scene.mount_point())
    mallory.does(script, mount / ".safetensors")
    assert f"user {attack.MALLORY} has {256 << 20} bytes in headers and indexes of such checkpoints" in mount.log()
    alice.does(script, mount / ".safetensors/pretrained")
    mallory.stop()
    alice.stop()


@pytest.mark.once
@pytest.mark.skipif(is_sanitized(), reason="a sanitizer has memory of its own")
def test_held_versions_of_a_large_header_end_before_they_fill_the_memory(tmp_path, mounts):
    header_bytes, versions, most_bytes = 20 << 20, 20, 256 << 20
    path = write_raw(tmp_path / "m.safetensors", [("t", "U8", [4], b"abcd")], {"large": "x" * header_bytes})
    mount = mounts(path)
    held = []
    for step in range(versions):
        held.append(os.open(mount / ".safetensors/header.json", os.O_RDONLY))
        os.setxattr(mount.path, "user.safetensors.metadata.step", b"%d" % step)

    def is_whole(file, step):
        """None where the version has ended."""
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            return f'"step":"{step - 1}"'.encode() in os.pread(file, 1 << 16, 0) + os.pread(file, 1 << 16, header_bytes - (1 << 15))
        except OSError as error:
            assert error.errno == errno.ESTALE
            return None

    states = [is_whole(file, step) for step, file in enumerate(held)]
    kept = most_bytes // header_bytes
    assert states == [None] * (versions - kept) + [True] * kept
    assert resident_bytes(mount) < 4 * most_bytes
    for file in held:
        os.close(file)
    assert (mount / "t").read_bytes() == b"abcd"
