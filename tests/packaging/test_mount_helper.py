# mount.safetensorsfs, the helper of mount(8). A script takes the place of safetensorsfs and writes down its arguments.
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


class Helper:
    def __init__(self, directory):
        self.directory = directory
        self.path = directory / "mount.safetensorsfs"
        template = (REPOSITORY / "packaging" / "mount.safetensorsfs.in").read_text()
        self.path.write_text(template.replace("@CMAKE_INSTALL_FULL_BINDIR@", str(directory)))
        self.path.chmod(0o755)
        self.program_exits(0)

    def program_exits(self, status):
        program = self.directory / "safetensorsfs"
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "${0%/*}/arguments"\nexit ' + f"{status}\n")
        program.chmod(0o755)

    def run(self, *arguments):
        return subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=30)

    def called_with(self):
        """Returns the arguments of the program, or None if it was not run."""
        try:
            return (self.directory / "arguments").read_text().splitlines()
        except FileNotFoundError:
            return None


@pytest.fixture
def helper(tmp_path):
    return Helper(tmp_path)


def test_source_and_mount_point_are_passed_on(helper):
    assert helper.run("model.safetensors", "/mnt/model").returncode == 0
    assert helper.called_with() == ["model.safetensors", "/mnt/model"]


def test_names_with_blanks_and_stars_stay_whole(helper):
    helper.run("my model *.safetensors", "/mnt/a  b", "-o", "ro")
    assert helper.called_with() == ["my model *.safetensors", "/mnt/a  b", "-o", "ro"]


def test_names_that_begin_with_a_dash_are_no_options(helper):
    helper.run("-o", "ro", "--", "-oallow_other.safetensors", "-m")
    assert helper.called_with() == ["./-oallow_other.safetensors", "./-m", "-o", "ro"]


def test_our_options_are_passed_on_in_order(helper):
    options = "rw,layout=tree,allow_other,default_permissions,uid=1,gid=2,umask=022,threads=4,nonempty,auto_unmount,fsname=a,subtype=b,noexec,noatime,sync"
    helper.run("a", "b", "-o", options)
    assert helper.called_with() == ["a", "b", "-o", options]


@pytest.mark.parametrize("option", [
    "defaults", "auto", "noauto", "nofail", "_netdev", "user", "user=joe", "users", "nouser", "owner",
    "group", "nosuid", "suid", "nodev", "dev", "exec", "relatime", "strictatime", "lazytime",
    "x-systemd.automount", "x-gvfs-show", "X-mount.mkdir", "comment=a thing", "async",
])
def test_options_for_mount_itself_are_taken_out(helper, option):
    helper.run("a", "b", "-o", f"ro,{option},threads=2")
    assert helper.called_with() == ["a", "b", "-o", "ro,threads=2"]


@pytest.mark.parametrize("namespace", [("-N", "1"), ("-N1",), ("-N",)])
def test_no_program_of_another_mount_namespace_runs(helper, namespace):
    """The owner of the namespace chooses what has the program's name there."""
    done = helper.run("a", "b", *namespace)
    assert (done.returncode, helper.called_with()) == (1, None)
    assert "-N is not supported" in done.stderr and "nsenter" in done.stderr


def test_no_option_is_passed_where_none_is_left(helper):
    helper.run("a", "b", "-o", "defaults,nofail")
    assert helper.called_with() == ["a", "b"]


def test_an_unknown_option_is_left_to_the_program_to_refuse(helper):
    helper.program_exits(2)
    assert helper.run("a", "b", "-o", "colour=red").returncode == 1
    assert helper.called_with() == ["a", "b", "-o", "colour=red"]


def test_called_as_mount_calls_it(helper):
    helper.run("a", "b", "-n", "-s", "-v", "-o", "rw,nofail", "-t", "safetensorsfs")
    assert helper.called_with() == ["a", "b", "-o", "rw"]


def test_flags_may_be_joined_and_options_come_first(helper):
    helper.run("-snv", "-oro", "-o", "threads=2", "a", "b")
    assert helper.called_with() == ["a", "b", "-o", "ro,threads=2"]


def test_fake_mounts_nothing(helper):
    result = helper.run("a", "b", "-f", "-v")
    assert result.returncode == 0
    assert result.stdout.rstrip().endswith("safetensorsfs a b")
    assert helper.called_with() is None


@pytest.mark.parametrize("of_program, of_helper", [(0, 0), (1, 32), (2, 1), (77, 32)])
def test_exit_status_is_that_of_mount(helper, of_program, of_helper):
    helper.program_exits(of_program)
    assert helper.run("a", "b").returncode == of_helper


def test_a_crash_of_the_program_is_a_failed_mount(helper):
    (helper.directory / "safetensorsfs").write_text("#!/bin/sh\nkill -9 $$\n")
    assert helper.run("a", "b").returncode == 32


def test_remount_is_refused_with_what_to_do(helper):
    result = helper.run("a", "/mnt/b", "-o", "remount,ro")
    assert result.returncode == 32
    assert "/mnt/b" in result.stderr and "Unmount" in result.stderr
    assert helper.called_with() is None


def test_a_missing_program_is_named(helper):
    (helper.directory / "safetensorsfs").unlink()
    result = helper.run("a", "b")
    assert result.returncode == 32
    assert f"{helper.directory}/safetensorsfs" in result.stderr


@pytest.mark.parametrize("arguments", [[], ["a"], ["a", "b", "c"], ["a", "b", "-o"], ["a", "b", "-q"],
                                       ["a", "b", "--quick"]])
def test_wrong_usage_is_1_with_the_usage(helper, arguments):
    result = helper.run(*arguments)
    assert result.returncode == 1
    assert "Usage: mount -t safetensorsfs" in result.stderr
    assert helper.called_with() is None


def test_help(helper):
    result = helper.run("--help")
    assert result.returncode == 0 and result.stdout.startswith("Usage:")
