# The names in a mounted directory of models: an archive's name replaces, moves and deletes its model and has its mode and its
# owner; other files go to the source directory.
import errno
import os
import shutil
import subprocess

import pytest
from mounted import errno_of
from new_models import check_model, is_same, mount, values, whole, zoo  # noqa: F401
from safetensors.numpy import load_file, save_file


def test_an_existing_name_is_the_models_archive(zoo, mount, tmp_path):
    """Writing onto it stores what differs; a rename over it replaces the archive."""
    due = values(0)
    inode = os.stat(zoo / "base.safetensors").st_ino
    reader = open(mount / "base" / "layer.0", "rb")
    due["layer.0"] = due["layer.0"] + 1
    due["layer.3"][0, 0] = 5
    (mount / "base.safetensors").write_bytes(whole(tmp_path / "saved", due))
    assert os.stat(zoo / "base.safetensors").st_ino == inode
    assert "2 of 4 tensors differed" in mount.log()
    check_model(zoo, mount, "base", due)
    reader.close()
    reader = open(mount / "base" / "layer.0", "rb")
    old = due["layer.0"].tobytes()
    due = values(5, 3)
    save_file(due, mount / "base.safetensors")
    assert os.stat(zoo / "base.safetensors").st_ino != inode
    check_model(zoo, mount, "base", due)
    assert reader.read() == old
    reader.close()
    with pytest.raises(FileExistsError):
        open(mount / "base.safetensors", "xb")
    assert errno_of(lambda: open(mount / "base", "wb")) == errno.EISDIR


def test_models_are_moved_and_deleted(zoo, mount):
    due = values(2)
    save_file(due, mount / "a.safetensors")
    reader = open(mount / "a" / "layer.0", "rb")
    os.rename(mount / "a.safetensors", mount / "b.safetensors")
    check_model(zoo, mount, "b", due)
    assert not os.path.exists(mount / "a") and not os.path.exists(mount / "a.safetensors")
    (mount / "b" / "layer.1").write_bytes(due["layer.0"].tobytes())
    due["layer.1"] = due["layer.0"]
    check_model(zoo, mount, "b", due)
    os.rename(mount / "b.safetensors", mount / "b.bak")
    assert sorted(os.listdir(mount.path)) == ["b.bak", "base"]
    os.rename(mount / "b.bak", mount / "base.safetensors")
    check_model(zoo, mount, "base", due)
    os.unlink(mount / "base.safetensors")
    assert os.listdir(mount.path) == [] and os.listdir(zoo) == []
    assert reader.read() == due["layer.0"].tobytes()
    reader.close()
    for act in (lambda: os.rename(mount / "a.safetensors", mount / "c.safetensors"), lambda: os.stat(mount / "a")):
        assert errno_of(act) == errno.ENOENT
    save_file(due, mount / "base.safetensors")
    check_model(zoo, mount, "base", due)
    for act in (lambda: os.rename(mount / "base", mount / "c"), lambda: os.rmdir(mount / "base")):
        assert errno_of(act) == errno.EPERM
    check_model(zoo, mount, "base", due)


def test_the_mode_of_an_archive_is_changed_by_its_name(zoo, mount, tmp_path):
    """As shutil.copy() and install(1) do it after the close."""
    data = whole(tmp_path / "saved", values(2))
    os.chmod(tmp_path / "saved", 0o640)
    os.utime(tmp_path / "saved", (1000, 1000))
    for name, copy in {"copy": shutil.copy, "copy2": shutil.copy2}.items():
        copy(tmp_path / "saved", mount / f"{name}.safetensors")
        assert os.stat(zoo / f"{name}.safetensors").st_mode & 0o777 == 0o640
        assert os.stat(mount / f"{name}.safetensors").st_mode & 0o777 == 0o640
        check_model(zoo, mount, name, values(2))
    assert os.stat(zoo / "copy2.safetensors").st_mtime == 1000
    done = subprocess.run(["install", "-m", "600", tmp_path / "saved", mount / "installed.safetensors"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (zoo / "installed.safetensors").read_bytes() == data
    assert os.stat(zoo / "installed.safetensors").st_mode & 0o777 == 0o600
    (mount / "copy2" / "layer.0").write_bytes(values(3)["layer.0"].tobytes())
    assert load_file(zoo / "copy2.safetensors")["layer.0"].tobytes() == values(3)["layer.0"].tobytes()
    mode = os.stat(mount / "copy" / "layer.0").st_mode
    os.chmod(mount / "copy" / "layer.0", 0o600)
    assert os.stat(mount / "copy" / "layer.0").st_mode == mode


def test_other_files_and_directories_go_to_the_source(zoo, mount):
    """As save_pretrained() makes them."""
    os.makedirs(mount / "variant")
    with open(mount / "variant" / "config.json", "w", encoding="utf-8") as file:
        file.write("{}")
    save_file(values(3), mount / "variant" / "model.safetensors")
    assert is_same(load_file(mount / "variant" / "model.safetensors"), values(3))
    assert sorted(os.listdir(zoo / "variant")) == ["config.json", "model.safetensors"]
    with open(mount / "config.json", "w", encoding="utf-8") as file:
        file.write("[1]")
        file.flush()
        assert (zoo / "config.json").read_text() == (mount / "config.json").read_text() == "[1]"
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), 0o600)
        os.utime(file.fileno(), (5, 5))
        file.seek(0)
        file.write("[22]")
        file.truncate(3)
    assert (zoo / "config.json").read_text() == "[22"
    assert os.stat(zoo / "config.json").st_mode & 0o777 == 0o600
    (mount / "config.json").write_text("[3]")
    with open(mount / "config.json", "a", encoding="utf-8") as file:
        file.write("4")
    assert (zoo / "config.json").read_text() == "[3]4"
    (zoo / "theirs").write_text("theirs")
    assert sorted(os.listdir(mount.path)) == ["base", "config.json", "theirs", "variant"]
    os.rename(mount / "config.json", mount / "other.json")
    os.unlink(mount / "theirs")
    assert errno_of(os.rmdir, mount / "variant") == errno.ENOTEMPTY
    # A model in the root and a file elsewhere: mv(1) copies.
    assert errno_of(os.rename, mount / "variant" / "model.safetensors", mount / "v.safetensors") == errno.EXDEV
    os.rename(mount / "variant" / "config.json", mount / "moved.json")
    os.rename(mount / "moved.json", mount / "variant" / "config.json")
    copied = subprocess.run(["cp", "-a", zoo / "variant", mount / "copied"], capture_output=True, text=True)
    assert copied.returncode == 0, copied.stderr
    assert sorted(os.listdir(zoo / "copied")) == ["config.json", "model.safetensors"]
    shutil.rmtree(mount / "copied")
    shutil.rmtree(mount / "variant")
    os.mkdir(mount / "empty")
    os.rmdir(mount / "empty")
    assert sorted(os.listdir(zoo)) == ["base.safetensors", "other.json"]
    assert errno_of(lambda: (mount / ".safetensors").write_text("x")) == errno.EISDIR
    for act in (lambda: os.mkdir(mount / "x.safetensors"),
                lambda: os.symlink("x", mount / "x"), lambda: os.link(mount / "other.json", mount / "x"),
                lambda: os.mkfifo(mount / "x")):
        assert errno_of(act) == errno.EPERM
    os.mkdir(mount / "taken")
    assert errno_of(lambda: (mount / "taken.safetensors").write_bytes(b"x")) == errno.EEXIST
    assert errno_of(os.rename, mount / "base.safetensors", mount / "taken.safetensors") == errno.EEXIST


def test_archives_come_by_rsync_and_move_between_directories(zoo, mount, tmp_path):
    for due in (values(4), values(5, 3)):
        save_file(due, tmp_path / "new.safetensors")
        done = subprocess.run(["rsync", "-a", tmp_path / "new.safetensors", f"{mount.path}/"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        check_model(zoo, mount, "new", due)
    os.mkdir(mount / "sub")
    subprocess.run(["mv", mount / "new.safetensors", mount / "sub"], check=True)
    assert sorted(os.listdir(mount.path)) == ["base", "sub"] and is_same(load_file(mount / "sub" / "new.safetensors"), due)
    subprocess.run(["mv", mount / "sub" / "new.safetensors", mount / "back.safetensors"], check=True)
    check_model(zoo, mount, "back", due)
    assert os.listdir(zoo / "sub") == []


def test_scratch_files_go_with_their_model(zoo, mount, mounts):
    (mount / "base" / "notes").write_text("notes")
    os.rename(mount / "base.safetensors", mount / "other.safetensors")
    assert (mount / "other" / "notes").read_text() == "notes"
    assert os.listdir(zoo / ".other.safetensors.scratch") == ["notes"] and not (zoo / ".base.safetensors.scratch").exists()
    os.rename(mount / "other.safetensors", mount / "other.bak")
    os.rename(mount / "other.bak", mount / "base.safetensors")
    assert (mount / "base" / "notes").read_text() == "notes"
    # A deletion keeps what a user may not have meant to delete, and says so.
    os.unlink(mount / "base.safetensors")
    assert os.listdir(zoo) == [".base.safetensors.scratch"] and os.listdir(mount.path) == []
    assert f"`rm -r {zoo / '.base.safetensors.scratch'}` deletes them" in mount.log()
    save_file(values(1), zoo / "another.safetensors")
    assert f"{zoo / 'base.safetensors'}: there is no such model, but its scratch files" in mounts(zoo).log()


@pytest.mark.needs_root
def test_scratch_files_of_another_user_stay_where_the_sticky_bit_keeps_them(zoo, mounts):
    alice, mallory = 12345, 65534
    save_file(values(2), zoo / "other.safetensors")
    for path in zoo, zoo / "base.safetensors":
        os.chown(path, alice if path != zoo else 0, -1)
    os.chmod(zoo, 0o1777)
    os.chmod(zoo / "base.safetensors", 0o644)
    os.chmod(zoo / "other.safetensors", 0o644)
    mount = mounts(zoo, "allow_other")

    def run_as(user, script):
        done = subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "sh", "-c", script],
                              cwd=mount.path, capture_output=True, text=True)
        assert done.returncode == 0, done

    run_as(alice, "echo work > base/notes && rm base.safetensors")
    # A name that is free again may be another user's, but the scratch files beside it are not.
    run_as(mallory, "cat other.safetensors > base.safetensors && mv base.safetensors moved.safetensors && rm moved.safetensors")
    assert (zoo / ".base.safetensors.scratch/notes").read_text() == "work\n"
    assert not (zoo / ".moved.safetensors.scratch").exists()
    assert "the scratch files of base.safetensors stay there" in mount.log()


@pytest.mark.needs_root
def test_files_belong_to_those_who_make_them(zoo, mounts):
    os.chmod(zoo, 0o777)
    os.chmod(zoo / "base.safetensors", 0o644)  # the reference library gives the rights to its user alone
    mount = mounts(zoo, "allow_other")

    def as_nobody(script):
        return subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script],
                              cwd=mount.path, capture_output=True, text=True)

    done = as_nobody("umask 027; cat base.safetensors > new.safetensors && mkdir d && echo x > plain")
    assert done.returncode == 0, done.stderr
    assert is_same(load_file(zoo / "new.safetensors"), values(0))
    for name, mode in {"new.safetensors": 0o640, "plain": 0o640, "d": 0o750}.items():
        found = os.stat(zoo / name)
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (65534, 65534, mode), name
    os.chmod(zoo, 0o755)
    os.listdir(mount.path)
    assert "Permission denied" in as_nobody("echo x > other").stderr
    assert "Permission denied" in as_nobody("rm new.safetensors").stderr
    # Files beside the models have the modes and owners of the source.
    (zoo / "secret").write_text("secret")
    os.chmod(zoo / "secret", 0o600)
    (zoo / "closed").mkdir(mode=0o700)
    (zoo / "closed" / "open").write_text("open")
    os.symlink("/etc/shadow", zoo / "shadow")
    os.lchown(zoo / "shadow", 65534, 65534)
    for script in ("cat secret", "echo x > secret", "cat closed/open", "ls closed", "cat shadow", "rm d/../plain"):
        assert as_nobody(script).returncode != 0, script
    assert "shadow" not in os.listdir(mount.path) and (mount / "closed" / "open").read_text() == "open"
    assert as_nobody("cat plain && echo y > plain && cat plain").stdout == "x\ny\n"
