# A mount of a directory makes no files beside its models: the log names the directory to write to, and the mount shows new
# models there.
import errno
import os
import subprocess

import pytest
from mounted import errno_of, eventually
from new_models import check_model, mount, values, whole, zoo  # noqa: F401
from safetensors.numpy import save_file


def changes_of(mount):
    """What programs try in the root and beside the models, by name."""
    root, file, directory, model = mount.path, mount / "notes.txt", mount / "sub", mount / "base.safetensors"
    return {
        "make an archive": lambda: open(mount / "new.safetensors", "xb"),
        "make a file": lambda: open(mount / "new", "xb"),
        "make a file below": lambda: open(directory / "new", "xb"),
        "mkdir": lambda: os.mkdir(mount / "new"),
        "mkdir below": lambda: os.mkdir(directory / "new"),
        "mknod": lambda: os.mknod(mount / "new"),
        "mkfifo": lambda: os.mkfifo(directory / "new"),
        "symlink": lambda: os.symlink("notes.txt", mount / "new"),
        "link": lambda: os.link(file, mount / "new"),
        "link a tensor": lambda: os.link(mount / "base" / "layer.0", directory / "new"),
        "rename": lambda: os.rename(file, mount / "new"),
        "rename an archive": lambda: os.rename(model, mount / "new.safetensors"),
        "rename a model": lambda: os.rename(mount / "base", mount / "new"),
        "rename to another directory": lambda: os.rename(file, directory / "new"),
        "rename into a model": lambda: os.rename(file, mount / "base" / "new"),
        "rename out of a model": lambda: os.rename(mount / "base" / "layer.0", mount / "new"),
        "unlink": lambda: os.unlink(file),
        "unlink below": lambda: os.unlink(directory / "deep" / "x"),
        "unlink an archive": lambda: os.unlink(model),
        "rmdir": lambda: os.rmdir(directory / "empty"),
        "rmdir of a model": lambda: os.rmdir(mount / "base"),
        "write": lambda: open(file, "w"),
        "append": lambda: open(file, "a"),
        "write below": lambda: open(directory / "deep" / "x", "r+"),
        "truncate": lambda: os.truncate(file, 0),
        "chmod": lambda: os.chmod(file, 0o600),
        "chmod of the root": lambda: os.chmod(root, 0o700),
        "chmod of a directory": lambda: os.chmod(directory, 0o700),
        "chown": lambda: os.chown(file, os.getuid(), os.getgid()),
        "utime": lambda: os.utime(file, (1, 1)),
        "utime of the root": lambda: os.utime(root, (1, 1)),
        "setxattr": lambda: os.setxattr(file, "user.x", b"x"),
        "setxattr of the root": lambda: os.setxattr(root, "user.x", b"x"),
    }


def state(directory):
    """Names, kinds, modes, times and bytes."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = os.lstat(path)
        found[str(path.relative_to(directory))] = (status.st_mode, status.st_mtime_ns, path.is_file() and path.read_bytes())
    return found


@pytest.mark.parametrize("options, due", [("", errno.EPERM), ("edit=off", errno.EPERM), ("ro", errno.EROFS)])
def test_nothing_beside_the_models_is_changed(zoo, mounts, options, due):
    (zoo / "notes.txt").write_text("kept")
    (zoo / "sub" / "empty").mkdir(parents=True)
    (zoo / "sub" / "deep").mkdir()
    (zoo / "sub" / "deep" / "x").write_text("deep")
    before = state(zoo)
    mount = mounts(zoo, options)
    for name, change in changes_of(mount).items():
        assert errno_of(change) == due, name
        if due == errno.EPERM:
            line = (mount / ".safetensors" / "log").read_text().splitlines()[-1]
            text = f"the mount of a directory changes no files beside its models: make and save files in {zoo}, "
            assert text in line, (name, line)
    assert (mount / "notes.txt").read_text() == "kept" and (mount / "sub" / "deep" / "x").read_text() == "deep"
    assert sorted(os.listdir(mount.path)) == ["base", "notes.txt", "sub"]
    check_model(zoo, mount, "base", values(0))
    assert state(zoo) == before


def test_programs_are_told_where_to_save(zoo, mount):
    done = subprocess.run(["cp", zoo / "base.safetensors", mount / "new.safetensors"], capture_output=True, text=True)
    assert done.returncode != 0 and "Operation not permitted" in done.stderr
    assert mount.log().count(f"make and save files in {zoo}, ") == 1
    save_file(values(2), zoo / "new.safetensors")
    assert eventually(lambda: os.path.exists(mount / "new" / "layer.0"))
    check_model(zoo, mount, "new", values(2))


def test_models_are_shown_when_they_are_whole(zoo, mount, tmp_path):
    due = values(2)
    data = whole(tmp_path / "saved", due)
    with open(zoo / "slow.safetensors", "wb", buffering=0) as file:
        file.write(data[:1000])
        assert not os.path.exists(mount / "slow")
        file.write(data[1000:])
    assert eventually(lambda: os.path.exists(mount / "slow"))
    check_model(zoo, mount, "slow", due)
    os.rename(tmp_path / "saved", zoo / "moved.safetensors")
    assert eventually(lambda: "moved" in os.listdir(mount.path))
    check_model(zoo, mount, "moved", due)
    assert "new model" in mount.log()
    # And what has come is watched as all others are.
    other = values(9, 2)
    save_file(other, zoo / "moved.safetensors")
    assert eventually(lambda: sorted(os.listdir(mount / "moved")) == sorted(other))
    check_model(zoo, mount, "moved", other)
