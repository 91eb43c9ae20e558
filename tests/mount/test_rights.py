# The capabilities of root's daemon while it serves a mount (fs/base/capabilities.h), and a check that a mount needs no others.
import os
import signal
import stat
import subprocess
from pathlib import Path

import killed_daemon
import pytest
from archive_file import random_bytes
from mounted import BINARY, eventually, mount_entry, unmount_by_force
from test_permissions import visit  # noqa: F401

pytestmark = [pytest.mark.needs_root, pytest.mark.sequential]

CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SYS_PTRACE, SYS_ADMIN = (1 << number for number in (0, 1, 3, 4, 19, 21))
EFFECTIVE = CHOWN | DAC_OVERRIDE | FOWNER | SYS_PTRACE
KEPT = EFFECTIVE | FSETID | SYS_ADMIN


def rights_of(status):
    """The sets of a thread, and whether programs that it starts may get more than it has."""
    fields = dict(line.split(":\t", 1) for line in Path(status).read_text().splitlines() if ":\t" in line)
    rights = {name: int(fields[f"Cap{name}"], 16) for name in ("Eff", "Prm", "Bnd", "Inh", "Amb")}
    return {**rights, "NoNewPrivs": int(fields["NoNewPrivs"])}


def threads_of(pid):
    """Rights of each thread, once the process serves."""
    assert eventually(lambda: rights_of(f"/proc/{pid}/status")["NoNewPrivs"] == 1)
    return [rights_of(task / "status") for task in Path(f"/proc/{pid}/task").iterdir()]


def expected(effective=EFFECTIVE):
    """The expected capabilities, limited to those of this test: a container may give root fewer."""
    own = rights_of("/proc/self/status")
    bound = KEPT if own["Prm"] & 1 << 8 else own["Bnd"]  # CAP_SETPCAP
    return {"Eff": effective & own["Prm"], "Prm": KEPT & own["Prm"], "Bnd": bound & own["Bnd"], "Inh": 0, "Amb": 0,
            "NoNewPrivs": 1}


@pytest.mark.parametrize("options", ["", "ro", "allow_other", "auto_unmount"])
def test_roots_daemon_keeps_only_what_serving_takes(archive, mounts, options):
    mount = mounts(archive.path, options)
    assert eventually(lambda: len(threads_of(mount.pid)) > 5)
    for rights in threads_of(mount.pid):
        assert rights == expected()
    (guard,) = killed_daemon.guards_of(mount.path)
    killed_daemon.wait_asleep(guard)
    assert rights_of(f"/proc/{guard}/status") == expected(EFFECTIVE | SYS_ADMIN)
    assert mount.unmount() == 0


@pytest.mark.parametrize("options", ["", "auto_unmount"])
def test_a_daemon_in_the_background_unmounts_at_its_end_without_its_other_rights(archive, tmp_path, options):
    path = tmp_path / "there"
    path.mkdir()
    try:
        subprocess.run([BINARY, archive.path, path, *(["-o", options] if options else [])], check=True, timeout=60)
        (guard,) = eventually(lambda: killed_daemon.guards_of(path))
        daemon = int(Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()[1])
        assert all(rights == expected() for rights in threads_of(daemon))
        os.kill(daemon, signal.SIGTERM)
        assert eventually(lambda: not Path(f"/proc/{daemon}").exists())
        assert mount_entry(path) is None
        assert eventually(lambda: not killed_daemon.guards_of(path))
    finally:
        unmount_by_force(path)


def test_an_ordinary_users_daemon_may_still_unmount_with_fusermount(archive, nobody, mounts):
    """That program is set-user-ID, and no_new_privs would take its rights."""
    source = nobody.own(killed_daemon.copy_for(nobody, archive.path))
    mount = nobody.mount(mounts, source)
    rights = rights_of(f"/proc/{mount.pid}/status")
    assert (rights["Prm"], rights["NoNewPrivs"]) == (0, 0)
    os.kill(mount.pid, signal.SIGTERM)
    assert mount.wait() == 0 and mount_entry(mount.path) is None


def test_archives_of_others_in_their_private_directories_are_edited_as_theirs(archive, nobody, visit):  # noqa: F811
    private = nobody.directory / "private"
    private.mkdir(mode=0o700)
    source = private / "model.safetensors"
    source.write_bytes(Path(archive.path).read_bytes())
    os.chmod(source, 0o600)
    for path in (private, source):
        nobody.own(path)
    there = visit(source)
    data = random_bytes(os.stat(there.mount / "odd").st_size, 7)
    (nobody.directory / "fresh").write_bytes(data)
    script = ('cat "$1" > odd && mv odd renamed && rm small && printf abc > .safetensors/pretrained/note && '
              'mkdir .safetensors/pretrained/more && mkdir .safetensors/transactions/T && '
              'cat "$1" > .safetensors/transactions/T/renamed && mv .safetensors/transactions/T .safetensors/committed/')
    done = there.run(script, nobody.directory / "fresh")
    assert done.returncode == 0, (done.stderr, there.mount.log())
    assert (there.mount / "renamed").read_bytes() == data
    for path in (source, private / "note", private / "more"):
        st = os.stat(path)
        assert (st.st_uid, st.st_gid) == (nobody.uid, nobody.gid), path
    assert there.mount.unmount() == 0


def test_a_killed_writer_of_another_user_is_rolled_back(archive, nobody, visit):  # noqa: F811
    """How a program of another user ended is in /proc for those with CAP_SYS_PTRACE."""
    os.chmod(archive.path, 0o666)
    there = visit(archive.path)
    before = (there.mount / "odd").read_bytes()
    for end, due in ((lambda: os.kill(os.getpid(), signal.SIGKILL), before), (lambda: os._exit(0), b"xyz" + before[3:])):
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setresgid(*[nobody.gid] * 3)
            os.setresuid(*[nobody.uid] * 3)
            os.write(os.open(there.mount / "odd", os.O_RDWR), b"xyz")
            end()
        os.waitpid(child, 0)
        assert (there.mount / "odd").read_bytes() == due


def test_a_write_takes_set_id_bits_as_it_does_without_the_mount(archive, nobody, visit):  # noqa: F811
    """A member of the group writes to a program of root's. With the bits, the program would now do what the member wants."""
    source = nobody.directory / "source"
    source.mkdir()
    model = source / "model.safetensors"
    model.write_bytes(Path(archive.path).read_bytes())
    program = source / "program"
    program.write_bytes(b"#!/bin/true\n")
    for path in (model, program):
        os.chown(path, 0, nobody.gid)
        os.chmod(path, 0o6775)
    there = visit(model)
    done = there.run("printf '#!/bin/sh' > .safetensors/pretrained/program && printf xyz | dd of=odd conv=notrunc")
    assert done.returncode == 0, done.stderr
    for path in (model, program):
        st = os.stat(path)
        assert st.st_uid == 0
        assert st.st_mode & (stat.S_ISUID | stat.S_ISGID) == 0, path


def test_a_new_directory_keeps_the_set_group_id_bit_of_its_parent(archive, nobody, visit):  # noqa: F811
    source = nobody.directory / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(Path(archive.path).read_bytes())
    os.chown(source, 0, 12345)
    os.chmod(source, 0o2777)
    there = visit(source / "model.safetensors")
    assert there.run("mkdir .safetensors/pretrained/made").returncode == 0
    st = os.stat(source / "made")
    assert (st.st_uid, st.st_gid, st.st_mode & stat.S_ISGID) == (nobody.uid, 12345, stat.S_ISGID)
