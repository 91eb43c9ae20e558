# uid= and gid= say which owner and group a mount shows. The files beside the model keep their owner, group and mode.
import os
import stat

import attacker as attack
import pytest
from archive_file import write_bytes_tensors

pytestmark = pytest.mark.needs_root

GROUP = 4242
# Returns the errno of each call. A call that sets what is shown already has nothing to do.
CHANGES = """
where = sys.argv[1]
def errno_of(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0
for name in ("config.json", "sub"):
    path = f"{where}/{name}"
    assert os.stat(path).st_uid == os.getuid() and os.stat(path).st_gid == GROUP
    assert errno_of(os.chmod, path, 0o777) == 1
    for owner in ((os.getuid(), -1), (-1, GROUP), (os.getuid(), GROUP)):
        errno_of(os.chown, path, *owner)
stay()
""".replace("GROUP", str(GROUP))


@pytest.fixture
def scene():
    yield from attack.scene_in("disk", 0)


def test_the_user_whom_a_mount_shows_as_owner_does_not_become_the_owner(scene, mounts):
    path = os.path.join(scene.directory, "m.safetensors")
    write_bytes_tensors(path, {"t": b"bytes"})
    beside = [os.path.join(scene.directory, name) for name in ("config.json", "sub")]
    with open(beside[0], "w") as file:
        file.write("{}")
    os.chmod(beside[0], 0o644)
    os.mkdir(beside[1], 0o755)
    mount = mounts(path, f"allow_other,uid={attack.MALLORY},gid={GROUP}", path=scene.mount_point())
    mallory = attack.Attacker()
    try:
        mallory.does(CHANGES, mount / ".safetensors/pretrained")
    finally:
        mallory.stop()
    for name, mode in zip(beside, (0o644, 0o755)):
        found = os.stat(name)
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, mode), name
