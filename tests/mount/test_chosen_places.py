# Another user chooses what a path of root's leads to: by a link, by a mount of FUSE, or by a file with many names. Root's tools and
# mounts neither wait for that user nor give root's private bytes away.
import os
import subprocess
from pathlib import Path

import mounted
import pytest
from archive_file import random_bytes, write_bytes_tensors
from mounted import BUILD, eventually
from naming_mount import naming_mount
from published_weights import version_directory
from test_journal_users import ALICE, is_run_by
from test_mounted_places import FOREVER, TOLD, silent_mount
from test_planted_files import MALLORY, as_mallory

pytestmark = pytest.mark.needs_root

FOREIGN = "leads into another user's file system: not entered"
SECRET = b"secret text " * 8 + b"text"


class Scene:
    """Root's public model, root's private one of the same form, and a directory that Mallory owns and all may write."""

    def __init__(self, directory, ground):
        self.stfs = directory / "stfs"
        self.stfs.write_bytes((BUILD / "stfs").read_bytes())
        self.stfs.chmod(0o755)
        self.ground, self.shared, self.private = ground, ground / "shared", ground / "private"
        self.private.mkdir(mode=0o700)
        self.shared.mkdir()
        self.shared.chmod(0o777)
        os.chown(self.shared, MALLORY, MALLORY)
        self.model = write_bytes_tensors(ground / "model.safetensors", {"t": random_bytes(100, 1)})
        self.model.chmod(0o644)
        self.secret = write_bytes_tensors(self.private / "secret.safetensors", {"t": SECRET})
        self.secret.chmod(0o600)

    def link(self, name, target):
        as_mallory('ln -s "$2" "$1"', self.shared / name, target)
        return self.shared / name

    def as_root(self, *arguments):
        return is_run_by(0, 0, [self.stfs, *map(str, arguments)], timeout=FOREVER)

    def check_refused(self, done, *words):
        assert done.returncode == 1 and all(word in done.stderr for word in words), done
        assert "secret text" not in done.stderr + done.stdout

    def holds_secret(self, path):
        return any(SECRET in file.read_bytes() for file in [path, *path.rglob("*")] if file.is_file())


@pytest.fixture
def scene(planted_ground):
    return Scene(*planted_ground)


@pytest.fixture
def unlisted(scene):
    """The path of a descriptor, in /proc, that leads into Mallory's mount, which is in no table any more."""
    place = scene.shared / "unlisted"
    with silent_mount(str(place), "allow_other"):
        descriptor = os.open(place, os.O_PATH | os.O_DIRECTORY)
        subprocess.run(["umount", "-l", place], check=True)
        assert mounted.mount_entry(place) is None
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
        os.close(descriptor)


def test_a_mount_that_no_table_lists_is_not_entered_by_tools(scene, unlisted):
    link = scene.link("evil.safetensors", f"{unlisted}/x.safetensors")
    directory = scene.link("evil", f"{unlisted}/")
    scene.check_refused(scene.as_root("ls", link), FOREIGN)
    scene.check_refused(scene.as_root("info", scene.shared), FOREIGN)
    scene.check_refused(scene.as_root("ls", directory), FOREIGN)
    scene.check_refused(scene.as_root("sample", directory / "new.safetensors"), "create")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_mount_that_no_table_lists_hides_no_change_from_a_mounted_directory(scene, unlisted, mounts, moment):
    alices = write_bytes_tensors(scene.shared / "alice.safetensors", {"t": random_bytes(100, 2)})
    os.chown(alices, ALICE, ALICE)
    alices.chmod(0o644)
    if moment == "before":
        scene.link("evil.safetensors", f"{unlisted}/x.safetensors")
    mount = mounts(scene.shared, "allow_other")
    if moment == "after":
        scene.link("evil.safetensors", f"{unlisted}/x.safetensors")
    alices.chmod(0o600)
    assert eventually(lambda: (mount / "alice/t").stat().st_mode & 0o777 == 0o600)
    assert mount.unmount() == 0


@pytest.mark.parametrize("options", ["log={}/away/log", "log={}/log"], ids=["a directory behind a link", "the file"])
def test_a_log_in_a_strangers_mount_is_refused(scene, mounts, options):
    own = scene.ground / "own"
    own.mkdir()
    own.chmod(0o1777)
    with silent_mount(str(own / "place"), "allow_other"), silent_mount(str(own / "log"), "allow_other", of_file=True):
        as_mallory('ln -s "$1" "$2"', own / "place", own / "away")
        with pytest.raises(mounted.MountFailed) as refused:
            mounts(scene.model, options.format(own))
    assert FOREIGN in refused.value.log or TOLD in refused.value.log, refused.value.log


def test_a_mount_on_the_name_of_a_log_holds_up_no_request(scene, mounts):
    own = scene.ground / "own"
    own.mkdir()
    own.chmod(0o777)
    log = own / "log"
    mount = mounts(scene.model, f"log={log}")

    def is_taken(moved=iter(range(1000))):
        """A late line of the mount may make the file again."""
        if log.stat().st_uid != MALLORY:
            log.rename(own / f"moved{next(moved)}")
            is_run_by(MALLORY, MALLORY, ["touch", log])
        return log.stat().st_uid == MALLORY

    assert eventually(is_taken)
    with silent_mount(str(log), "allow_other", of_file=True):
        for size in range(1, 4):
            assert mounted.errno_of((mount / "t").write_bytes, bytes(size)) != 0
        # The mount gives its first reason only. A late line may have found Mallory's file without the mount on it.
        assert TOLD in mount.log() or f"belongs to user {MALLORY}" in mount.log()
    assert mount.unmount() == 0
    assert any("1 bytes were written" in moved.read_text() for moved in own.glob("moved*"))


@pytest.mark.parametrize("name", ["s.sock", "s.sock.lock"])
def test_a_mount_on_the_name_of_a_server_is_named(scene, name):
    with silent_mount(str(scene.shared / name), "allow_other", of_file=True):
        done = scene.as_root("serve", scene.model, "--device", "cpu", "--socket", scene.shared / "s.sock")
    scene.check_refused(done, TOLD)


RULES = {
    "a pipe": ('mkfifo "$1"', "is a pipe of user"),
    "a link to a device": ('ln -s /dev/zero "$1"', "another user's link is not followed"),
    "a large file": ('truncate -s 2M "$1"', "at most 1 MiB"),
}


@pytest.mark.parametrize("kind", RULES)
def test_planted_rules_are_refused(scene, kind):
    make, why = RULES[kind]
    rules = scene.shared / "rules"
    as_mallory(make, rules)
    scene.check_refused(scene.as_root("upload", scene.model, "--device", f"@{rules}"), why)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_no_text_of_a_private_file_is_shown_as_a_rule(scene, link):
    private = scene.private / "notes"
    private.write_text("secret text\n")
    private.chmod(0o600)
    link(private, scene.shared / "rules")
    os.chown(scene.shared / "rules", MALLORY, MALLORY, follow_symlinks=False) if link is os.symlink else None
    scene.check_refused(scene.as_root("upload", scene.model, "--device", f"@{scene.shared / 'rules'}"), "rules: ")


def test_an_unmount_waits_for_no_place_that_took_the_archives_name(scene, mounts):
    archive = write_bytes_tensors(scene.shared / "m.safetensors", {"t": random_bytes(100, 1)})
    mount = mounts(archive)
    with silent_mount(str(scene.shared / "place"), "allow_other"):
        as_mallory('mv "$1" "$1.old"; ln -s "$2/x" "$1"', archive, scene.shared / "place")
        done = is_run_by(0, 0, [scene.stfs, "umount", str(mount.path)], timeout=FOREVER)
    assert done.returncode == 0, done
    mount.wait()


def test_an_unmount_follows_no_link_of_another_user(scene, mounts):
    mount = mounts(scene.model)
    for link in (scene.link("mnt", mount.path), scene.link("above", mount.path.parent) / mount.path.name):
        scene.check_refused(scene.as_root("umount", link), "another user's link is not followed")
        assert mounted.mount_entry(mount.path) is not None
    own = scene.ground / "link"
    own.symlink_to(mount.path)
    assert scene.as_root("umount", own).returncode == 0
    mount.wait()


def published(scene, *arguments):
    return scene.as_root("diff", "--encoding", "overwrite", "--version", "1", "--base", "0", "--out", scene.ground / "published",
                         *arguments)  # fmt: skip


@pytest.mark.parametrize("side", ["old", "new"])
def test_a_private_model_behind_a_link_is_not_published(scene, side):
    link = scene.link("b.safetensors", scene.secret)
    models = (link, scene.model) if side == "old" else (scene.model, link)
    scene.check_refused(published(scene, *models), "another user's link is not followed")
    assert not scene.holds_secret(scene.ground / "published")


def test_a_private_model_that_was_moved_is_not_published(scene):
    moved = scene.shared / "moved.safetensors"
    scene.secret.rename(moved)
    (scene.ground / "published").mkdir()
    (scene.ground / "published").chmod(0o755)
    for mode in (0o600, 0o640, 0o604):
        moved.chmod(mode)
        scene.check_refused(published(scene, scene.model, moved), "is private, and others may read")
    assert not scene.holds_secret(scene.ground / "published")
    (scene.ground / "published").chmod(0o700)  # nobody else may read what comes into it
    assert published(scene, scene.model, moved).returncode == 0


@pytest.mark.parametrize("how", ["a link", "a mount"])
def test_the_library_publishes_no_private_model_of_a_strangers_choice(scene, how, tmp_path):
    if not list((BUILD / "python" / "stfs").glob("_stfs.*so")) or mounted.is_sanitized():
        pytest.skip("the Python module is not built, or can't be loaded into a Python without a sanitizer")
    code = "import sys, stfs\nold, new, published = sys.argv[1:]\nstfs.publish(old, new, published, 1)"

    def publish(new):
        environment = {**os.environ, "PYTHONPATH": str(BUILD / "python")}
        return mounted.run_python(code, scene.model, new, scene.ground / "published", env=environment)

    if how == "a link":
        done = publish(scene.link("b.safetensors", scene.secret))
    else:
        as_mallory('mkdir "$1"', scene.shared / "mnt")
        with naming_mount(scene.shared / "mnt", scene.secret, MALLORY):
            done = publish(scene.shared / "mnt")
    assert done.returncode != 0 and ("is not followed" in done.stderr or "is a mount of user" in done.stderr), done
    assert not scene.holds_secret(scene.ground / "published")
    assert publish(scene.secret).returncode == 0  # root has named it itself


@pytest.mark.parametrize("verb", ["apply", "pull", "pull of the directory above"])
def test_a_private_version_behind_a_link_is_not_applied(scene, verb):
    assert scene.as_root("diff", "--encoding", "overwrite", "--version", "1", "--base", "0", "--out", scene.private / "published",
                         scene.model, scene.secret).returncode == 0  # fmt: skip
    version = version_directory(scene.private / "published", 1)
    if verb == "apply":
        done = scene.as_root("apply", scene.model, scene.link(version.name, version))
    elif verb == "pull":
        done = scene.as_root("pull", scene.model, scene.link("published", version.parent))
    else:
        done = scene.as_root("pull", scene.model, scene.link("private", scene.private) / "published")
    scene.check_refused(done, "another user's link is not followed")
    assert not scene.holds_secret(scene.model)


NAMED = {
    "put": lambda scene, mount: ("put", scene.model, "t", mount),
    "apply": lambda scene, mount: ("apply", scene.model, mount),
    "diff": lambda scene, mount: ("diff", "--encoding", "overwrite", "--version", "1", "--base", "0", "--out",
                                  scene.ground / "published", scene.model, mount),
}  # fmt: skip


@pytest.mark.parametrize("verb", NAMED)
def test_a_strangers_mount_chooses_no_private_source(scene, verb):
    mount = scene.shared / "mnt"
    as_mallory('mkdir "$1"', mount)
    with naming_mount(mount, scene.secret, MALLORY):
        for mode in (0o600, 0o640, 0o604):
            scene.secret.chmod(mode)
            scene.check_refused(scene.as_root(*NAMED[verb](scene, mount)), f"is a mount of user {MALLORY}",
                                f"name {scene.secret} itself")  # fmt: skip
    assert not scene.holds_secret(scene.ground / "published") and not scene.holds_secret(scene.model)
    scene.secret.chmod(0o644)  # Mallory may read it, so Mallory's choice gives nothing away
    with naming_mount(mount, scene.secret, MALLORY):
        done = scene.as_root(*NAMED[verb](scene, mount))
    # A publication asks a mount for its generation, which this one does not have.
    assert done.returncode == (1 if verb == "diff" else 0) and "is a mount of user" not in done.stderr, done


def test_a_picture_of_two_models_is_as_private_as_both(scene):
    for at, models in enumerate([(scene.model, scene.secret), (scene.secret, scene.model)]):
        picture = scene.ground / f"{at}.svg"
        assert scene.as_root("diff", "--svg", picture, *models).stderr == ""
        assert picture.stat().st_mode & 0o777 == 0o600


def test_a_refused_archive_of_many_names_is_read_once(scene, mounts):
    broken = scene.shared / "0.safetensors"
    broken.write_bytes((40).to_bytes(8, "little") + b'{"t": {"dtype": "F32", "shape": [1]}}   ')
    for at in range(1, 4):
        os.link(broken, scene.shared / f"{at}.safetensors")
    write_bytes_tensors(scene.shared / "m.safetensors", {"t": SECRET})
    mount = mounts(scene.shared)
    assert mount.log().count("another name of this file") == 3
    Path(scene.shared, "1.safetensors").unlink()
    write_bytes_tensors(scene.shared / "1.safetensors", {"t": SECRET})
    assert eventually(lambda: mounted.errno_of(os.stat, mount / "1/t") == 0)
