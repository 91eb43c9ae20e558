# Permissions in a mount with allow_other: the present mode and owner of each shard decide who may read and write it. Each test
# is a row of packaging/doc/threats.md.
import errno
import os
import shutil
import subprocess

import pytest
from access_list import let_user
from mounted import eventually, in_child, shell
from sharded_model import ShardedModel

pytestmark = [pytest.mark.needs_root, pytest.mark.sequential]


class Visitor:
    """The user nobody in a mount of root's."""

    def __init__(self, nobody, mounts, source, options="allow_other"):
        self.nobody = nobody
        self.mount = mounts(source, options, path=nobody.make_mount_point())

    def run(self, script, *arguments):
        return subprocess.run([*self.nobody.before, "sh", "-c", f"cd '{self.mount.path}' && {script}", "sh",
                               *map(str, arguments)], capture_output=True, text=True)

    def may(self, script, name):
        done = self.run(script, name)
        refused = "Permission denied" in done.stderr or "can't cd" in done.stderr
        assert refused == (done.returncode != 0), done.stderr
        return not refused

    def may_read(self, name):
        return self.may('cat "$1" > /dev/null', name)

    def may_write(self, name):
        return self.may('exec 3<> "$1"', name)


@pytest.fixture
def model(tmp_path):
    """Two shards that everybody may read."""
    model = ShardedModel(tmp_path / "sharded", shards=2)
    for name in model.names:
        os.chmod(model.directory / name, 0o644)
    return model


@pytest.fixture
def visit(nobody, mounts):
    return lambda source, options="allow_other": Visitor(nobody, mounts, source, options)


def shards(model):
    """Two tensors, of the first and of the second shard."""
    return tuple(model.tensors_of(shard)[0] for shard in model.names)


@pytest.mark.parametrize("private", [0, 1])
def test_a_shard_that_others_may_not_read_stays_so(model, visit, private):
    os.chmod(model.directory / model.names[private], 0o600)
    os.chmod(model.directory / model.names[1 - private], 0o666)
    there = visit(model.index)
    hidden, open_ = shards(model)[private], shards(model)[1 - private]
    assert there.may_read(open_) and there.may_write(open_)
    assert not there.may_read(hidden) and not there.may_write(hidden)
    for view in ("archive.safetensors", "header.json", "metadata.json", f"npy/{hidden}.npy"):
        assert not there.may_read(f".safetensors/{view}"), view
    assert there.may_read(f".safetensors/npy/{open_}.npy")
    assert there.run("ls").stdout.split() == sorted(model.tensors)
    for name in (hidden, open_):
        shown, real = os.stat(there.mount / name), os.stat(model.shard_of(name))
        assert (shown.st_mode & 0o777, shown.st_uid, shown.st_gid) == (real.st_mode & 0o777, real.st_uid, real.st_gid)


def test_a_mode_that_changes_under_a_mount_counts_at_once(model, visit):
    first, second = shards(model)
    there = visit(model.index)
    assert there.may_read(first) and there.may_read(second)
    for private in (True, False):
        os.chmod(model.shard_of(first), 0o600 if private else 0o644)
        assert eventually(lambda: there.may_read(first) != private)
        assert there.may_read(second)
        assert there.may_read(".safetensors/archive.safetensors") != private
        assert os.stat(there.mount / first).st_mode & 0o777 == (0o600 if private else 0o644)


def test_an_owner_that_changes_under_a_mount_counts(archive, visit, nobody):
    os.chmod(archive.path, 0o600)
    there = visit(archive.path)
    assert there.run("ls").returncode != 0
    nobody.own(archive.path)
    assert eventually(lambda: there.may_read("embed") and there.may_write("embed"))
    os.chown(archive.path, 0, 0)
    assert eventually(lambda: there.run("ls").returncode != 0)


def test_a_file_that_is_open_stays_open(archive, visit, open_fd):
    os.chmod(archive.path, 0o644)
    there = visit(archive.path)
    fd = open_fd(there.mount / "embed")
    os.chmod(archive.path, 0o600)
    assert eventually(lambda: os.stat(there.mount / "embed").st_mode & 0o777 == 0o600)
    assert len(os.pread(fd, 16, 0)) == 16


def test_names_of_the_source_directory_are_for_those_who_may_list_it(archive, visit, nobody):
    source = nobody.directory / "source"
    source.mkdir()
    shutil.copyfile(archive.path, source / "model.safetensors")
    (source / "config.json").write_text("{}")
    there = visit(source / "model.safetensors")
    for mode, may_list, may_search in ((0o755, True, True), (0o700, False, False), (0o711, False, True), (0o755, True, True)):
        os.chmod(source, mode)
        assert there.may("ls .safetensors/pretrained", "") == may_list
        assert there.may('cat "$1"', ".safetensors/pretrained/config.json") == may_search
        assert there.may_read(".safetensors/pretrained/model.safetensors") == may_search
        assert there.may_read(".safetensors/archive.safetensors")
    os.chmod(source / "config.json", 0o600)
    assert there.may("ls .safetensors/pretrained", "")
    assert not there.may_read(".safetensors/pretrained/config.json")


def test_models_of_a_directory_have_their_own_modes(tmp_path, archive, visit):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    for name, mode in (("a", 0o600), ("b", 0o644)):
        path = zoo / f"{name}.safetensors"
        shutil.copyfile(archive.path, path)
        os.chmod(path, mode)
    there = visit(zoo)
    assert there.run("ls").stdout.split() == ["a", "b"]
    assert there.may_read("b/embed")
    assert there.run("ls a").returncode != 0 and there.run("cat a/embed").returncode != 0


def test_an_access_control_list_does_not_open_a_file_to_its_group(archive, visit, nobody):
    os.chown(archive.path, 0, nobody.gid)
    let_user(4242, 0o6, archive.path)
    # The group's bits of the mode are the list's mask.
    assert os.stat(archive.path).st_mode & 0o777 == 0o660
    there = visit(archive.path)
    assert not there.may_read("embed") and not there.may_write("embed")


def test_a_transaction_is_its_makers(archive, visit):
    os.chmod(archive.path, 0o666)
    there = visit(archive.path)
    views = there.mount / ".safetensors"
    (views / "transactions/T").mkdir()
    (views / "transactions/T/embed").write_bytes(b"\1" * os.stat(there.mount / "embed").st_size)
    before = (there.mount / "embed").read_bytes()
    cd = "cd .safetensors && "
    for script in ("ls transactions/T", "cat transactions/T/embed", "mv transactions/T committed/",
                   "mv transactions/T transactions/U", "rm transactions/T/embed", "rmdir transactions/T"):
        done = there.run(cd + script)
        assert done.returncode != 0 and ("ermission" in done.stderr or "not permitted" in done.stderr), (script, done)
    assert (there.mount / "embed").read_bytes() == before
    # Its own it may make, commit and remove.
    done = there.run(cd + "mkdir transactions/mine && cat ../embed > transactions/mine/embed && "
                     "mv transactions/mine committed/ && rmdir committed/mine")
    assert done.returncode == 0, done.stderr
    os.rename(views / "transactions/T", views / "committed/T")
    assert (there.mount / "embed").read_bytes() == b"\1" * len(before)


def test_without_allow_other_nobody_else_enters(archive, visit):
    os.chmod(archive.path, 0o666)
    there = visit(archive.path, "default_permissions")
    assert there.run("ls").returncode != 0
    assert shell('ls "$1"', there.mount.path).returncode == 0


def test_metadata_is_for_those_who_may_read_every_shard(model, visit):
    there = visit(model.index)
    keys = os.listxattr(there.mount.path)
    os.chmod(model.directory / model.names[1], 0o600)
    assert eventually(lambda: os.stat(there.mount / shards(model)[1]).st_mode & 0o077 == 0)
    for key in keys:
        if ".metadata." not in key:
            continue
        with pytest.raises(OSError) as raised:
            os.getxattr(there.mount.path, key)
        assert raised.value.errno == errno.EACCES


def test_keys_of_the_metadata_are_listed_for_those_who_may_read_it(archive, visit):
    """The kernel asks no right for a list of attributes, and a key can say much."""
    there = visit(archive.path)

    def keys(groups=()):
        read_end, write_end = os.pipe()

        def list_as_nobody():
            os.setgroups(groups)
            os.setresgid(*[there.nobody.gid] * 3)
            os.setresuid(*[there.nobody.uid] * 3)
            os.write(write_end, " ".join(os.listxattr(there.mount.path)).encode())

        in_child(list_as_nobody)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            return [key for key in pipe.read().split() if ".metadata." in key]

    def give(mode, group=0):
        os.chown(archive.path, 0, group)
        os.chmod(archive.path, mode)
        assert eventually(lambda: (os.stat(there.mount / "embed").st_mode & 0o777, os.stat(there.mount / "embed").st_gid)
                          == (mode, group))

    give(0o644)
    all_keys = keys()
    assert all_keys
    give(0o600)
    assert keys() == []
    assert [key for key in os.listxattr(there.mount.path) if ".metadata." in key] == all_keys
    give(0o640, 54321)
    assert keys() == [] and keys([54321]) == all_keys


def test_in_a_user_namespace_an_unknown_owner_has_the_rights_of_others(nobody, archive_path):
    """A user of the namespace may have the number that the kernel shows for all outside it."""
    model = shutil.copy2(archive_path, nobody.directory / "model.safetensors")
    os.chmod(model, 0o640)
    os.chown(model, 45678, nobody.gid)
    script = '"$1" "$2" "$3" && stat -c "%a %u %g" "$3"/*weight | sort -u; umount "$3"'
    mount = ["unshare", "-Urm", "sh", "-c", script, "sh", nobody.binary, model, nobody.make_mount_point()]
    done = subprocess.run([*nobody.before_daemon, *mount], capture_output=True, text=True, timeout=60)
    if "unshare failed" in done.stderr:
        pytest.skip("user namespaces are not allowed here")
    assert done.stdout == "40 65534 0\n", done
