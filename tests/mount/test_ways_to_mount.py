# The ways to mount and unmount: mount(8), fstab, an ordinary user, umount, fusermount3 and signals.
import os
import shutil
import signal
import subprocess
import threading

import mount_namespace
import pytest
from archive_file import ArchiveFile, random_bytes, save_with_reference
from mounted import BINARY, PATIENCE, REPOSITORY, MountFailed, eventually, mount_entry, shell, unmount_by_force

pytestmark = pytest.mark.library

T = "layers.0.weight"


# ---- unmounting ----

@pytest.mark.parametrize("command", [["umount"], ["fusermount3", "-u"]])
def test_unmounting_by_command_ends_the_daemon_with_0(mount, command):
    (mount / "odd").read_bytes()
    assert subprocess.run([*command, mount.path]).returncode == 0
    assert mount.wait() == 0
    assert not mount.is_mounted() and os.listdir(mount.path) == []


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts_and_ends_the_daemon_with_0(mount, which):
    (mount / "odd").read_bytes()
    mount.process.send_signal(which)
    assert mount.wait() == 0
    assert not mount.is_mounted()


def test_a_signal_finishes_although_files_are_open(mount, expected, open_fd):
    fd = open_fd(mount / "odd")
    os.read(fd, 10)
    mount.process.send_signal(signal.SIGTERM)
    assert mount.wait() == 0
    assert eventually(lambda: not mount.is_mounted())
    expected.check()


def test_a_signal_drops_what_is_staged_and_says_so(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_WRONLY)
    os.write(fd, b"staged and not closed")
    mount.process.send_signal(signal.SIGTERM)
    assert mount.wait() == 0
    expected.check()
    assert T in mount.log(), mount.log()


def test_umount_is_refused_while_a_file_is_open(mount, open_fd):
    fd = open_fd(mount / T)
    done = subprocess.run(["umount", mount.path], capture_output=True, text=True)
    assert done.returncode != 0 and "busy" in done.stderr
    assert os.read(fd, 4)
    os.close(fd)


def test_a_lazy_unmount_serves_open_files_to_their_end(mount, expected):
    fd = os.open(mount / T, os.O_WRONLY)
    os.write(fd, b"before ")
    assert subprocess.run(["umount", "-l", mount.path]).returncode == 0
    os.write(fd, b"and after")
    os.close(fd)
    expected.change(T, b"before and after")
    expected.check()
    assert mount.wait() == 0


# ---- what the kernel shows of the mount ----

def test_the_mount_table_shows_type_source_and_safe_options(mount):
    source, kind, options = mount_entry(mount.path)
    assert kind == "fuse.safetensorsfs"
    assert source == mount.archive.path
    assert {"nosuid", "nodev", "rw"} <= set(options)


def test_nosuid_and_nodev_cannot_be_switched_off(archive, mounts):
    assert {"nosuid", "nodev"} <= set(mount_entry(mounts(archive.path, "suid,dev").path)[2])


def test_statfs_and_df_are_sane(mount, archive):
    status = os.statvfs(mount.path)
    data_bytes = sum(end - begin for _, _, begin, end in archive.layout().values())
    assert status.f_bsize > 0 and status.f_frsize > 0
    assert status.f_blocks * status.f_frsize >= data_bytes
    assert status.f_bavail <= status.f_bfree <= status.f_blocks
    assert status.f_files >= len(archive.layout())
    assert status.f_namemax == 255
    done = subprocess.run(["df", mount.path], capture_output=True, text=True)
    assert done.returncode == 0 and archive.path in done.stdout


def test_du_shows_the_size_of_the_data(mount, archive):
    data_bytes = sum(end - begin for _, _, begin, end in archive.layout().values())
    done = subprocess.run(["du", "-sb", mount.path], capture_output=True, text=True)
    assert abs(int(done.stdout.split()[0]) - data_bytes) <= 8192
    done = subprocess.run(["du", "-s", "-B1", mount.path], capture_output=True, text=True)
    assert data_bytes <= int(done.stdout.split()[0]) <= data_bytes + 8192 * (len(archive.layout()) + 1)


# ---- an ordinary user ----

@pytest.fixture
def users_mount(nobody, mounts):
    """nobody's own archive on nobody's own mount point."""
    path = nobody.own(save_with_reference(nobody.directory / "m.safetensors"))
    mount = nobody.mount(mounts, path)
    mount.archive = ArchiveFile(path)
    return mount


def test_an_ordinary_user_mounts_reads_and_writes(users_mount, nobody):
    size_bytes = users_mount.archive.size("odd")
    data = random_bytes(size_bytes, 3)
    new = nobody.directory / "new"
    new.write_bytes(data)
    assert len(users_mount.sh("ls").stdout.split()) == len(users_mount.archive.layout())
    done = users_mount.sh(f"cp '{new}' odd && cmp '{new}' odd")
    assert done.returncode == 0, done.stderr
    assert users_mount.archive.tensor("odd") == data


def test_root_does_not_see_an_ordinary_users_mount(users_mount):
    done = subprocess.run([*users_mount.inside, "ls", users_mount.path], capture_output=True, text=True)
    assert done.returncode != 0 and "Permission denied" in done.stderr


@pytest.mark.skipif(not os.path.exists("/etc/mtab"),
                    reason="there is no /etc/mtab, in which fusermount3 looks up a user's mount")
def test_an_ordinary_user_unmounts_with_fusermount3(users_mount, nobody):
    done = subprocess.run([*users_mount.inside, *nobody.before, "fusermount3", "-u", users_mount.path],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert users_mount.wait() == 0


def test_a_signal_ends_an_ordinary_users_mount(users_mount):
    users_mount.process.send_signal(signal.SIGTERM)
    assert users_mount.wait() == 0
    assert eventually(lambda: not users_mount.is_mounted())


@pytest.mark.parametrize("mode, options", [(0o644, ""), (0o444, "rw")])
def test_an_archive_that_the_user_may_not_write_is_mounted_read_only(nobody, mounts, mode, options):
    path = save_with_reference(nobody.directory / "m.safetensors")  # root's
    os.chmod(path, mode)
    before = path.read_bytes()
    mount = nobody.mount(mounts, path, options)
    assert mount.sh("wc -c < odd").stdout.strip() == "12345"
    assert "Read-only file system" in mount.sh("echo x > odd").stderr
    assert path.read_bytes() == before
    assert "ro" in mount.entry()[2]
    assert "read-only" in mount.log() and "m.safetensors" in mount.log()


def test_an_archive_on_a_read_only_file_system_is_mounted_read_only(archive, mounts, tmp_path):
    bound = tmp_path / "bound"
    bound.mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    shutil.copy(archive.path, inside / "m.safetensors")
    if subprocess.run(["mount", "--bind", inside, bound], capture_output=True).returncode != 0:
        pytest.skip("bind mounts are not allowed here")
    try:
        if subprocess.run(["mount", "-o", "remount,bind,ro", bound], capture_output=True).returncode != 0:
            pytest.skip("read-only bind mounts are not allowed here")
        mount = mounts(bound / "m.safetensors")
        assert (mount / "odd").read_bytes() == archive.tensor("odd")
        with pytest.raises(OSError, match="Read-only file system"):
            (mount / "odd").write_bytes(b"x" * 12345)
        assert mount.unmount() == 0
    finally:
        unmount_by_force(bound)


def test_allow_other_without_user_allow_other_says_what_to_do(nobody, mounts):
    try:
        with open("/etc/fuse.conf") as file:
            if any(line.strip() == "user_allow_other" for line in file):
                pytest.skip("/etc/fuse.conf allows it")
    except OSError:
        pass
    path = nobody.own(save_with_reference(nobody.directory / "m.safetensors"))
    with pytest.raises(MountFailed) as caught:
        nobody.mount(mounts, path, "allow_other")
    assert caught.value.status == 1 and "user_allow_other" in caught.value.log


def test_a_mount_point_of_somebody_else_is_refused(nobody, mounts):
    path = nobody.own(save_with_reference(nobody.directory / "m.safetensors"))
    target = nobody.directory / "foreign"
    target.mkdir()  # root's
    with pytest.raises(MountFailed) as caught:
        mounts(path, path=target, before=nobody.before_daemon, binary=nobody.binary,
               in_namespace=nobody.in_namespace)
    assert caught.value.status == 1 and str(target) in caught.value.log


def test_another_user_reads_a_mount_with_allow_other(nobody, mounts):
    path = save_with_reference(nobody.directory / "m.safetensors")
    os.chmod(path, 0o644)
    mount = mounts(path, "allow_other", path=nobody.make_mount_point())
    done = subprocess.run([*nobody.before, "cat", mount / "odd"], capture_output=True)
    assert done.stdout == ArchiveFile(path).tensor("odd")
    done = subprocess.run([*nobody.before, "dd", "if=/dev/zero", f"of={mount / 'odd'}", "bs=12345", "count=1"],
                          capture_output=True, text=True)
    assert done.returncode != 0 and "Permission denied" in done.stderr, "only root may write this archive"


# ---- mount(8) and fstab, in a separate mount namespace ----

@pytest.fixture
def in_namespace(tmp_path, archive):
    """Runs a script where mount(8) finds our helper in /sbin, and nothing outside notices."""
    template = REPOSITORY / "packaging" / "mount.safetensorsfs.in"
    if not template.exists():
        pytest.skip("packaging/mount.safetensorsfs.in is not there")
    helpers = tmp_path / "helpers"
    helpers.mkdir()
    (tmp_path / "mnt").mkdir()
    helper = helpers / "mount.safetensorsfs"
    helper.write_text(template.read_text().replace("@CMAKE_INSTALL_FULL_BINDIR@", str(BINARY.parent)))
    helper.chmod(0o755)
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("mount namespaces are not allowed here")

    def run(script):
        before = (f"sbin=$(readlink -f /sbin); mount -t overlay overlay -o lowerdir='{helpers}':$sbin $sbin || exit 77\n"
                  f"cd '{tmp_path}'; model='{archive.path}'; mnt='{tmp_path}/mnt'\n"
                  "trap 'umount -l \"$mnt\" 2>/dev/null' EXIT\n")
        done = subprocess.run([*mount_namespace.in_namespace("true"), "sh", "-c", before + script],
                              capture_output=True, text=True, timeout=60 * PATIENCE)
        if done.returncode == 77:
            pytest.skip("overlay mounts are not allowed here")
        return done

    return run


@pytest.mark.needs_root
def test_mount_dash_t_works(in_namespace, archive):
    done = in_namespace('mount -t safetensorsfs "$model" "$mnt" -o ro,layout=tree && cat "$mnt/layers/0/bias" | wc -c '
                        '&& grep " $mnt " /proc/mounts && umount "$mnt" && ls "$mnt" | wc -l')
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(archive.size("layers.0.bias")) and lines[-1] == "0"
    assert "fuse.safetensorsfs ro,nosuid,nodev" in lines[1]


@pytest.mark.needs_root
def test_a_line_of_fstab_works(in_namespace, archive):
    done = in_namespace('echo "$model $mnt safetensorsfs ro,noauto,nofail,x-systemd.requires=network.target,umask=022 0 0" '
                        '> fstab; mount -T fstab "$mnt" && wc -c < "$mnt/odd"; umount "$mnt"')
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(archive.size("odd"))


@pytest.mark.needs_root
def test_mount_dash_t_writes(in_namespace, archive):
    done = in_namespace('mount -t safetensorsfs "$model" "$mnt" && head -c 12345 /dev/zero > "$mnt/odd" && umount "$mnt"')
    assert done.returncode == 0, done.stderr
    assert archive.tensor("odd") == bytes(12345)


@pytest.mark.needs_root
def test_mount_dash_t_reports_failures(in_namespace):
    done = in_namespace('mount -t safetensorsfs "$model.missing" "$mnt"; echo $?; '
                        'mount -t safetensorsfs "$model" "$mnt" -o nonsense; echo $?')
    assert "No such file" in done.stderr and "nonsense" in done.stderr
    assert all(int(line) != 0 for line in done.stdout.splitlines())


# ---- many at once ----

def test_ten_mounts_of_one_archive_at_a_time(archive, mounts):
    made = [mounts(archive.path, "ro") for _ in range(10)]
    assert all((mount / "odd").read_bytes() == archive.tensor("odd") for mount in made)


def test_unmounting_under_load_ends_cleanly(archive, mounts):
    mount = mounts(archive.path)
    stop = threading.Event()

    def read_on():
        while not stop.is_set():
            try:
                (mount / T).read_bytes()
            except OSError:
                return

    readers = [threading.Thread(target=read_on) for _ in range(4)]
    for reader in readers:
        reader.start()
    mount.process.send_signal(signal.SIGTERM)
    status = mount.wait()
    stop.set()
    for reader in readers:
        reader.join()
    assert status == 0
    assert shell('mountpoint -q "$1"', mount.path).returncode != 0
