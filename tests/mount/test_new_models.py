# Programs make models in a mounted directory of models: NAME.safetensors is checked as it arrives, becomes a file of the
# source directory when it is whole, and is shown as the directory NAME at once.
import errno
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import safetensors
from archive_file import random_bytes
from edited_mount import stfs
from mounted import errno_of, eventually
from new_models import check_model, is_same, leftovers, mount, values, whole, zoo  # noqa: F401
from safetensors.numpy import load_file, save_file


def test_save_file_makes_a_model(zoo, mount):
    due = values(2)
    save_file(due, mount / "new.safetensors")  # a temporary file, renamed before its close
    check_model(zoo, mount, "new", due)
    assert sorted(os.listdir(mount.path)) == ["base", "new"]
    (mount / "new" / "layer.0").write_bytes(due["layer.1"].tobytes())
    due["layer.0"] = due["layer.1"]
    check_model(zoo, mount, "new", due)
    due = values(3, 7)
    save_file(due, mount / "new.safetensors")
    check_model(zoo, mount, "new", due)
    assert not leftovers(zoo)
    assert "new model" in mount.log()


def test_a_plain_stream_makes_a_model(zoo, mount, tmp_path):
    due = values(2)
    data = whole(tmp_path / "saved", due)
    with open(mount / "new.safetensors", "wb", buffering=0) as file:
        for begin in range(0, len(data), 10_007):
            assert "new.safetensors" not in os.listdir(zoo)
            file.write(data[begin:begin + 10_007])
            assert os.fstat(file.fileno()).st_size == os.stat(mount / "new.safetensors").st_size == file.tell()
        assert (mount / "new.safetensors").read_bytes() == data
        assert "new" not in os.listdir(mount.path) and "new.safetensors" in os.listdir(mount.path)
        assert errno_of(os.open, mount / "new.safetensors", os.O_WRONLY) == errno.EBUSY
    check_model(zoo, mount, "new", due)
    # cp, a shell that hands its descriptor on, and a saver that opens for reading and writing
    subprocess.run(["cp", tmp_path / "saved", mount / "copied.safetensors"], check=True)
    check_model(zoo, mount, "copied", due)
    subprocess.run(["sh", "-c", 'cat "$1" > "$2"', "sh", tmp_path / "saved", mount / "catted.safetensors"], check=True)
    check_model(zoo, mount, "catted", due)
    with open(mount / "both.safetensors", "x+b") as file:
        file.truncate(len(data))
        file.write(data)
        file.seek(0)
        assert file.read() == data
    check_model(zoo, mount, "both", due)
    assert not leftovers(zoo)


def test_temporary_names_become_models_by_a_rename(zoo, mount, tmp_path):
    due = values(2)
    data = whole(tmp_path / "saved", due)
    for number, temporary in enumerate(["x.tmp", ".hidden", "x.safetensors.tmp", "tmp.safetensors"]):
        (mount / temporary).write_bytes(data)
        assert is_same(load_file(mount / temporary), due)
        os.rename(mount / temporary, mount / f"new{number}.safetensors")
        check_model(zoo, mount, f"new{number}", due)
        assert not os.path.exists(mount / temporary) and not os.path.exists(zoo / temporary)
    assert sorted(os.listdir(mount.path)) == ["base", "new0", "new1", "new2", "new3"]
    # One that arrives under a name of an archive, and is renamed before its close
    with open(mount / "y.tmp.safetensors", "wb", buffering=0) as file:
        file.write(data)
        os.rename(mount / "y.tmp.safetensors", mount / "y.safetensors")
        check_model(zoo, mount, "y", due)
    with open(mount / "z.tmp.safetensors", "wb", buffering=0) as file:
        file.write(data[:-1])
        os.rename(mount / "z.tmp.safetensors", mount / "z.safetensors")
        file.write(data[-1:])
    check_model(zoo, mount, "z", due)


def test_what_is_no_archive_leaves_nothing(zoo, mount, tmp_path):
    before = sorted(os.listdir(zoo))
    data = whole(tmp_path / "saved", values(2))

    def write(bad):
        with open(mount / "new.safetensors", "xb", buffering=0) as file:
            file.write(bad)

    for bad in (b"\xff" * 8, b"garbage" * 100, data + b"x", data[:8] + b"[" + data[9:]):
        fd = os.open(mount / "new.safetensors", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        assert errno_of(os.write, fd, bad) == errno.EINVAL  # at the write
        assert errno_of(os.close, fd) == errno.EINVAL
    for bad in (data[:-1], data[:100], b"12345"):
        assert errno_of(write, bad) == errno.EINVAL  # at the close
    assert errno_of(os.close, os.open(mount / "new.safetensors", os.O_WRONLY | os.O_CREAT)) == 0  # nothing was written
    for bad in (data[:-1], data + b"x", b"garbage", b""):
        (mount / "x.tmp").write_bytes(bad)
        assert errno_of(os.rename, mount / "x.tmp", mount / "new.safetensors") == errno.ENODATA
        os.unlink(mount / "x.tmp")
    fd = os.open(mount / "new.safetensors", os.O_WRONLY | os.O_CREAT)
    assert errno_of(os.pwrite, fd, data[100:], 100) == errno.EINVAL  # not in order
    assert errno_of(os.close, fd) == errno.EINVAL
    assert eventually(lambda: not os.path.exists(mount / "new.safetensors"))
    assert sorted(os.listdir(mount.path)) == ["base"]
    assert sorted(os.listdir(zoo)) == before
    assert "its header gives" in mount.log()
    write(data)
    check_model(zoo, mount, "new", values(2))


def test_a_killed_saver_leaves_nothing(zoo, mount, tmp_path):
    data = whole(tmp_path / "saved", values(2))
    for size in (len(data) // 2, len(data)):
        saver = subprocess.Popen([sys.executable, "-c", """import sys, time
with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb", buffering=0) as target:
    target.write(source.read(int(sys.argv[3])))
    print("here", flush=True)
    time.sleep(1000)""", tmp_path / "saved", mount / "new.safetensors", str(size)], stdout=subprocess.PIPE)
        assert saver.stdout.readline() == b"here\n"
        assert os.path.exists(mount / "new.safetensors")
        saver.kill()
        saver.wait()
        saver.stdout.close()
        assert eventually(lambda: not os.path.exists(mount / "new.safetensors"))
        assert sorted(os.listdir(zoo)) == ["base.safetensors"]


def test_the_tools_of_this_project_make_models(zoo, mount):
    stfs("repack", zoo / "base.safetensors", mount / "packed.safetensors")
    check_model(zoo, mount, "packed", values(0))
    stfs("diff", mount / "base", mount / "packed", "--out", mount / "delta.safetensors")
    assert "delta" in os.listdir(mount.path)
    assert not leftovers(zoo)


def test_models_of_others_are_shown_when_they_are_whole(zoo, mount, tmp_path):
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
    # And what is made through the mount is watched as all others are.
    save_file(due, mount / "new.safetensors")
    other = values(9, 2)
    save_file(other, zoo / "new.safetensors")
    assert eventually(lambda: sorted(os.listdir(mount / "new")) == sorted(other))
    check_model(zoo, mount, "new", other)


def test_many_programs_make_models_at_once(zoo, mount):
    wrong = []

    def save(number):
        try:
            for step in range(5):
                due = values(number * 10 + step, 3)
                save_file(due, mount / f"m{number}.safetensors")
                check_model(zoo, mount, f"m{number}", due)
        except Exception as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert "base" in os.listdir(mount.path)
    for thread in threads:
        thread.join()
    assert not wrong
    assert sorted(os.listdir(mount.path)) == ["base", "m0", "m1", "m2", "m3"]


@pytest.mark.parametrize("options, due", [("ro", errno.EROFS), ("edit=off", errno.EPERM)])
def test_a_mount_without_edits_makes_nothing(zoo, mounts, options, due):
    (zoo / "config.json").write_text("{}")
    mount = mounts(zoo, options)
    for act in (lambda: open(mount / "new.safetensors", "xb"), lambda: open(mount / "x", "xb"),
                lambda: os.mkdir(mount / "d"), lambda: os.unlink(mount / "base.safetensors"),
                lambda: os.unlink(mount / "config.json"),
                lambda: os.rename(mount / "base.safetensors", mount / "x.safetensors")):
        assert errno_of(act) == due
    assert is_same(load_file(mount / "base.safetensors"), values(0))
    assert (mount / "config.json").read_text() == "{}"
    shutil.copyfile(zoo / "base.safetensors", zoo / "later")
    os.rename(zoo / "later", zoo / "later.safetensors")
    assert eventually(lambda: os.path.exists(mount / "later") and "later" in os.listdir(mount.path))


def test_without_a_right_to_the_directory_nothing_is_made(nobody, mounts):
    source = nobody.directory / "zoo"
    source.mkdir()
    save_file(values(0), source / "base.safetensors")
    nobody.own(source / "base.safetensors")
    os.chmod(source, 0o755)
    mount = nobody.mount(mounts, source)
    done = mount.sh("echo x > new.safetensors")
    # Nothing can be made or removed by anybody, so the mount is read-only.
    assert done.returncode != 0 and "Read-only file system" in done.stderr
    assert "Read-only file system" in mount.sh("rm base.safetensors").stderr
    assert os.listdir(source) == ["base.safetensors"]


def test_a_full_disk_leaves_nothing(tmp_path, mounts):
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    try:
        save_file(values(0), disk / "base.safetensors")
        mount = mounts(disk)
        large = {"w": np.frombuffer(random_bytes(12 << 20, 1), "u1")}
        data = whole(tmp_path / "saved", large)

        def write(name):
            with open(mount / name, "wb", buffering=0) as file:
                for begin in range(0, len(data), 1 << 20):
                    file.write(data[begin:begin + (1 << 20)])

        assert errno_of(write, "new.safetensors") == errno.ENOSPC
        assert errno_of(write, "new.tmp") == errno.ENOSPC
        os.unlink(mount / "new.tmp")
        with pytest.raises((OSError, safetensors.SafetensorError)):
            save_file(large, mount / "new.safetensors")
        assert [name for name in os.listdir(disk) if not name.startswith(".tmp")] == ["base.safetensors"]
        save_file(values(1), mount / "new.safetensors")
        check_model(disk, mount, "new", values(1))
        assert mount.unmount() == 0
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_an_archive_with_holes_of_deleted_tensors_is_copied(tmp_path, mounts):
    """cp(1) skips the holes; it must not look like a checkpoint whose bytes do not come in order."""
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    due = values()
    due["large"] = np.ones(3_000_000, "f4")
    save_file(due, zoo / "first.safetensors")
    for name in ("layer.1", "large", "layer.2"):
        stfs("rm", "--keep-space", zoo / "first.safetensors", name)
        del due[name]
    holed = tmp_path / "holed.safetensors"
    shutil.move(zoo / "first.safetensors", holed)
    save_file(due, zoo / "first.safetensors")
    with open(holed, "rb") as file:
        has_hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE) < os.fstat(file.fileno()).st_size
    if not has_hole:
        pytest.skip(f"{tmp_path} keeps no holes")
    mount = mounts(zoo)
    subprocess.run(["cp", holed, mount / "second.safetensors"], check=True)
    subprocess.run(["cp", holed, mount / "first" / ".safetensors" / "archive.safetensors"], check=True)
    for name in ("first", "second"):
        for tensor, array in due.items():
            assert (mount / name / tensor).read_bytes() == array.tobytes(), (name, tensor)
    stfs("verify", zoo / "second.safetensors")
