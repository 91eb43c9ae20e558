# A user who may write the directory of another user's models plants links there, to files in a private directory. Root's mount
# shows none of these files, and root's tools do not change them.
import contextlib
import json
import os
import shutil
from pathlib import Path

import mount_namespace
import pytest
from archive_file import random_bytes, write_bytes_tensors
from lying_mount import lying_mount
from mounted import MountFailed, errno_of, eventually
from sharded_model import ShardedModel, hub_cache
from test_journal_users import ALICE, Shared, is_run_by
from test_planted_files import MALLORY, as_mallory

REFUSED = "another user's link is not followed"

pytestmark = pytest.mark.needs_root


class Scene(Shared):
    """Alice's archive in a directory that everybody may write, and files of root's in a private one."""

    def __init__(self, directory, ground):
        super().__init__(directory, ground / "archives")
        self.give(0o644, 0o777, ALICE)
        self.models = Path(self.archives)
        self.private = ground / "private"
        self.private.mkdir(mode=0o700)
        self.secret = self.private / "secret.safetensors"
        write_bytes_tensors(self.secret, {"topsecret": random_bytes(100, 1), "other": random_bytes(100, 2)})
        self.secret.chmod(0o666)
        (self.private / "config.json").write_text("secret")
        (self.private / "sub").mkdir()
        (self.private / "sub" / "key").write_text("secret")
        self.point = Path(directory, "mnt")
        self.point.mkdir()

    def link(self, name, target):
        """Mallory makes it."""
        path = self.models / name
        as_mallory('ln -sfn "$1" "$2"', target, path)
        assert os.lstat(path).st_uid == MALLORY
        return path

    def as_victim(self, *arguments):
        return is_run_by(0, 0, [self.stfs, *map(str, arguments)], timeout=60)

    def mallory_reads(self, path):
        done = is_run_by(MALLORY, MALLORY, ["cat", str(path)], text=False, timeout=60)
        return done.stdout if done.returncode == 0 else None


@pytest.fixture
def scene(planted_ground):
    return Scene(*planted_ground)


def chain(scene, name, target):
    """A link of root's, to one of Mallory's."""
    as_mallory('mkdir -p "$1"', scene.models / "blobs")
    scene.link("blobs/H", target)
    os.symlink("blobs/H", scene.models / name)
    return scene.models / name


def through_a_directory(scene, name, target):
    """A link of root's, by way of Mallory's link to a directory."""
    scene.link("blobs", target.parent)
    os.symlink(Path("blobs", target.name), scene.models / name)
    return scene.models / name


PLANTED = {"a link": Scene.link, "a link behind a link of root's": chain, "a link to a directory": through_a_directory}
planted = pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())


@planted
@pytest.mark.parametrize("options", ["allow_other", "allow_other,ro"])
def test_a_directory_of_models_shows_no_private_archive(scene, mounts, plant, options):
    plant(scene, "x.safetensors", scene.secret)
    mount = mounts(scene.models, options, path=scene.point)
    assert scene.mallory_reads(mount / "model/a") == scene.data_of("a")
    assert errno_of(os.listdir, mount / "x") != 0
    assert scene.mallory_reads(mount / "x.safetensors") is None
    assert REFUSED in mount.log() and f"belongs to user {MALLORY}" in mount.log()
    assert mount.unmount() == 0


def test_an_archive_that_comes_later_is_refused_as_well(scene, mounts):
    mount = mounts(scene.models, "allow_other", path=scene.point)
    link = scene.link("link", scene.secret)
    as_mallory('mv "$1" "$2"', link, scene.models / "x.safetensors")
    # The mount shows an archive that is added later.
    new = write_bytes_tensors(Path(scene.directory, "new"), {"a": b"bytes"})
    shutil.move(new, scene.models / "y.safetensors")
    assert eventually(lambda: errno_of(os.stat, mount / "y/a") == 0), mount.log()
    assert errno_of(os.stat, mount / "x/topsecret") != 0
    assert mount.unmount() == 0


def test_an_archive_that_is_replaced_by_a_link_is_not_shown(scene, mounts):
    mount = mounts(scene.path, "allow_other", path=scene.point)
    as_mallory('mv "$1" "$1.old" && ln -s "$2" "$1"', scene.path, scene.secret)
    assert eventually(lambda: REFUSED in mount.log()), mount.log()
    assert errno_of(os.stat, mount / "topsecret") != 0
    # The owner's next one is shown.
    os.unlink(scene.path)
    write_bytes_tensors(scene.path, {"new": b"bytes"})
    assert eventually(lambda: errno_of(os.stat, mount / "new") == 0), mount.log()
    assert mount.unmount() == 0


@planted
def test_a_mount_of_a_link_is_refused_and_says_why(scene, mounts, plant):
    path = plant(scene, "x.safetensors", scene.secret)
    with pytest.raises(MountFailed) as failed:
        mounts(path, path=scene.point)
    assert REFUSED in failed.value.log and f"belongs to user {MALLORY}" in failed.value.log
    # The file itself may be named.
    mount = mounts(scene.secret, path=scene.point)
    assert (mount / "topsecret").read_bytes() == random_bytes(100, 1)
    assert mount.unmount() == 0


def test_a_shard_and_an_index_behind_links_are_refused(scene, mounts):
    index = scene.models / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": "model.safetensors", "topsecret": "x.safetensors"}}))
    os.chown(index, ALICE, ALICE)
    scene.link("x.safetensors", scene.secret)
    mount = mounts(scene.models, "allow_other", path=scene.point)
    assert scene.mallory_reads(mount / "a") == scene.data_of("a")
    assert errno_of(open, mount / "topsecret") != 0
    assert REFUSED in mount.log()
    assert mount.unmount() == 0
    private = scene.private / "private.safetensors.index.json"
    private.write_text(index.read_text())
    link = scene.link("y.safetensors.index.json", private)
    with pytest.raises(MountFailed) as failed:
        mounts(link, path=scene.point)
    assert REFUSED in failed.value.log


@pytest.mark.parametrize("owner", [0, ALICE])
def test_a_hubs_cache_of_one_owner_is_mounted(planted_ground, mounts, owner):
    directory, ground = planted_ground
    source = ShardedModel(ground / "source")
    snapshot = hub_cache(ground / "cache", source)
    for path in [ground / "cache", *(ground / "cache").rglob("*")]:
        os.lchown(path, owner, owner)
    point = directory / "mnt"
    point.mkdir()
    name = next(iter(source.weight_map))
    for options in "ro", "rw":
        mount = mounts(snapshot, f"allow_other,{options}", path=point)
        assert (mount / name).read_bytes() == source.stored(name)
        assert mount.unmount() == 0


def test_links_of_a_file_chain_are_each_checked_among_the_other_files(scene, mounts):
    # Relative: an absolute link may lead by way of another file system, which is refused for that.
    chain(scene, "config.json", "../../private/config.json")
    scene.link("blobs/S", "../../private/sub")
    os.symlink("blobs/S", scene.models / "linked")
    mount = mounts(scene.models, "allow_other", path=scene.point)
    for name in "config.json", "linked/key":
        assert scene.mallory_reads(mount / name) is None
    # Mallory's own files are shown.
    as_mallory('echo own > "$1" && ln -sfn own "$2"', scene.models / "blobs/own", scene.models / "blobs/H")
    assert eventually(lambda: scene.mallory_reads(mount / "config.json") == b"own\n")
    assert mount.unmount() == 0


def fresh(scene):
    path = Path(scene.directory, "fresh")
    path.write_bytes(random_bytes(100, 3))
    return path


WRITES = {"put": lambda scene, path: ["put", path, "topsecret", fresh(scene)],
          "rm": lambda scene, path: ["rm", path, "topsecret"],
          "mv": lambda scene, path: ["mv", path, "topsecret", "renamed"],
          "set": lambda scene, path: ["set", "--metadata", "a=1", path],
          "apply": lambda scene, path: ["apply", path, change_of(scene)]}
writes = pytest.mark.parametrize("command", WRITES.values(), ids=WRITES.keys())


def change_of(scene):
    return write_bytes_tensors(os.path.join(scene.directory, "change.safetensors"), {"topsecret": random_bytes(100, 3)})


@planted
@writes
def test_tools_of_root_change_nothing_behind_a_link(scene, plant, command):
    path = plant(scene, "x.safetensors", scene.secret)
    before = scene.secret.read_bytes()
    done = scene.as_victim(*command(scene, path))
    assert done.returncode == 1 and REFUSED in done.stderr and f"belongs to user {MALLORY}" in done.stderr, done
    assert scene.secret.read_bytes() == before
    # Reading through the link is allowed. A command that names the file itself may change it.
    assert scene.as_victim("ls", path).returncode == 0
    done = scene.as_victim(*command(scene, scene.secret))
    assert done.returncode == 0 and scene.secret.read_bytes() != before, done


COPIES = {"put": ("key.bin", lambda path, source: ["put", path, "a", source]),
          "put from an archive": ("like.safetensors", lambda path, source: ["put", path, "a", source]),
          "put a new tensor": ("key.bin", lambda path, source: ["put", "--create", "--dtype", "U8", path, "new", source]),
          "set": ("config.json", lambda path, source: ["set", path, "--metadata", f"card=@{source}"]),
          "apply": ("like.safetensors", lambda path, source: ["apply", path, source])}


@planted
@pytest.mark.parametrize("name, command", COPIES.values(), ids=COPIES.keys())
def test_tools_of_root_copy_nothing_from_behind_a_link(scene, plant, name, command):
    """Mallory may read the archive that the tool changes."""
    (scene.private / "key.bin").write_bytes(random_bytes(20_000, 4))
    write_bytes_tensors(scene.private / "like.safetensors", {"a": random_bytes(20_000, 5)})
    source = plant(scene, name, scene.private / name)
    before = Path(scene.path).read_bytes()
    done = scene.as_victim(*command(scene.path, source))
    assert done.returncode == 1 and REFUSED in done.stderr and f"belongs to user {MALLORY}" in done.stderr, done
    assert Path(scene.path).read_bytes() == before
    done = scene.as_victim(*command(scene.path, scene.private / name))
    assert done.returncode == 0 and Path(scene.path).read_bytes() != before, done


def test_a_tool_changes_what_a_link_of_the_files_owner_leads_to(scene):
    link = scene.models / "own.safetensors"
    is_run_by(ALICE, ALICE, ["ln", "-s", scene.path, str(link)])
    before = Path(scene.path).read_bytes()
    done = scene.as_victim("rm", link, "a")
    assert done.returncode == 0 and Path(scene.path).read_bytes() != before, done


@pytest.fixture
def foreign(mounts, nobody):
    """A mount of nobody's for all users, of an archive of nobody's."""
    nobody.archive = Path(nobody.own(write_bytes_tensors(nobody.directory / "own.safetensors", {"topsecret": random_bytes(100, 1)})))
    conf = nobody.directory / "fuse.conf"
    conf.write_text("user_allow_other\n")
    before = [*mount_namespace.in_namespace(f"mount --bind '{conf}' /etc/fuse.conf"), *nobody.before_daemon]
    nobody.mounted = mounts(nobody.archive, "allow_other", path=nobody.make_mount_point(), before=before, binary=nobody.binary,
                            in_namespace=True)
    return nobody


@writes
def test_tools_of_root_do_not_write_where_another_users_mount_says(scene, foreign, command):
    mount = foreign.mounted

    def write():
        return is_run_by(0, 0, [scene.stfs, *map(str, command(scene, mount.path))], mount.inside, timeout=60)

    # The mount names an archive that its own user owns.
    done = write()
    # An edit that needs room fails while a mount has the archive open, but the mount is believed.
    assert done.returncode == 0 or "has the archive open" in done.stderr, done
    # The same name leads to an archive of root's.
    os.rename(foreign.archive, foreign.directory / "old")
    write_bytes_tensors(foreign.archive, {"topsecret": random_bytes(100, 1), "other": b"bytes"})
    before = foreign.archive.read_bytes()
    done = write()
    assert done.returncode == 1 and f"is a mount of user {foreign.uid}" in done.stderr, done
    assert foreign.archive.read_bytes() == before
    # Or it is a link.
    foreign.archive.unlink()
    foreign.archive.symlink_to(scene.secret)
    os.lchown(foreign.archive, foreign.uid, foreign.gid)
    before = scene.secret.read_bytes()
    done = write()
    assert done.returncode == 1 and REFUSED in done.stderr, done
    assert scene.secret.read_bytes() == before
    assert mount.unmount() == 0


def test_a_mount_of_this_user_or_of_root_may_name_any_archive(scene, mounts):
    os.chown(scene.secret, MALLORY, MALLORY)
    mount = mounts(scene.secret, "allow_other", path=scene.point)
    done = scene.as_victim("put", mount.path, "topsecret", fresh(scene))
    assert done.returncode == 0, done
    assert (mount / "topsecret").read_bytes() == fresh(scene).read_bytes()
    assert mount.unmount() == 0


@pytest.fixture
def lying(scene):
    """A directory of Mallory's FUSE mount. Its server says that links to private files are root's."""
    path = scene.models / "lying"
    as_mallory('mkdir "$1"', path)
    links = {"x.safetensors": scene.secret, "config.json": scene.private / "config.json"}
    with lying_mount(path, MALLORY, links):
        assert os.lstat(path / "x.safetensors").st_uid == 0 and os.readlink(path / "config.json") == str(links["config.json"])
        yield path


@writes
def test_a_link_in_another_users_mount_is_that_users_whatever_it_tells(scene, lying, command):
    before = scene.secret.read_bytes()
    done = scene.as_victim(*command(scene, lying / "x.safetensors"))
    assert done.returncode == 1 and REFUSED in done.stderr and f"belongs to user {MALLORY}" in done.stderr, done
    assert scene.secret.read_bytes() == before


def test_a_mount_of_another_users_mount_shows_nothing_behind_its_links(scene, lying, mounts):
    # A slash names what is mounted there, and not the name.
    with contextlib.suppress(MountFailed):
        mount = mounts(f"{lying}/", "allow_other", path=scene.point)
        for name in ("x/topsecret", "config.json", "x/.safetensors/pretrained/config.json"):
            assert scene.mallory_reads(mount / name) is None, name
