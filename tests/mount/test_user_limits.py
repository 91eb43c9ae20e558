# What one user may have in a mount that others may enter: a user at the limit gets EDQUOT and stops nobody.
import os
import resource

import attacker as attack
import pytest

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
                                          (METADATA, "bytes of metadata in transactions")], ids=["transactions", "metadata"])
def test_a_user_at_the_limit_of_transactions_stops_nobody(scene, mallory, alice, mounts, script, said):
    mount = mounts(scene.path, "allow_other", path=scene.mount_point())
    transactions = mount / ".safetensors/transactions"
    mallory.does(script, transactions)
    assert f"user {attack.MALLORY} " in mount.log() and said in mount.log()
    alice.does(OTHERS, transactions)
    assert os.getxattr(mount.path, "user.safetensors.metadata.note") == b"x" * 65000
    assert (mount / "a").read_bytes()[:5] == b"alice"
    (transactions / "root").mkdir()


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
