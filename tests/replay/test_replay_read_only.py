# Commits where no journal can be written: in another user's directory, and on a disk that became read-only with a commit
# half done. And commits that share blocks instead of copying them.
import errno
import os
import pwd
import re
import shutil
import subprocess

import archive_file
import kills
import loop_disk
import programs
import pytest

SEED = 11
KINDS = sorted(loop_disk.SIZES)


def test_a_directory_that_takes_no_journal_refuses_the_commit(disk, scratch):
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv")
    directory = disk("ext4")
    os.chmod(scratch, 0o755)
    nobody = pwd.getpwnam("nobody").pw_uid
    archive = programs.create_archive(directory / programs.ARCHIVE, SEED)
    os.chown(archive, nobody, -1)  # the file may be written, the directory may not
    os.chmod(directory, 0o555)
    program = shutil.copy2(programs.WORKLOAD, scratch / "commit_workload")
    before = archive.read_bytes()
    command = programs.workload_command(archive, "--seed", SEED, "--commits", 1)
    result = subprocess.run(["setpriv", f"--reuid={nobody}", "--clear-groups", "--", program, *command[1:]],
                            capture_output=True, text=True)
    story = programs.read_story(result.stdout)
    assert story.failed, (story, result.stderr)
    assert story.failed[:3] == (1, errno.EACCES, "aborted")
    assert str(directory) in story.failed[3]
    assert archive.read_bytes() == before and not programs.journals_beside(archive)


@pytest.mark.parametrize("kind", KINDS)
def test_a_committed_journal_on_a_read_only_disk_is_read_and_not_applied(kind, disk, scratch, mounts, strace):
    directory = disk(kind)
    archive = programs.create_archive(directory / programs.ARCHIVE, SEED)
    # Commit 4 is made of parts, so it is copied everywhere: it dies in the middle of that.
    arguments = ["--seed", SEED, "--first", 1, "--commits", 4]
    trial = programs.create_archive(directory / "trial.safetensors", SEED)
    log = scratch / "calls"
    assert programs.run_workload(trial, *arguments, before=kills.traced(log)).is_finished
    number = kills.after(log, "linkat", "pwrite64", 2)
    programs.run_workload(archive, *arguments, before=kills.killed_at("pwrite64", number))
    journals = programs.journals_beside(archive)
    assert len(journals) == 1
    loop_disk.remount_read_only(directory, kind)
    before = archive.read_bytes()
    report = programs.check_state(archive, SEED, 4, 4, "--read-only")
    assert report["verdict"] == "whole", report
    # The mount falls back to reading, and shows the commit.
    mount = mounts(archive)
    shown = {name: (mount / name).read_bytes() for name in archive_file.ArchiveFile(archive).layout()}
    expected = {name: data for name, (_, _, data) in archive_file.ArchiveFile(trial).reference().items()}
    assert shown == expected
    with pytest.raises(OSError) as failure:
        (mount / "scalar").write_bytes(b"1234")
    assert failure.value.errno == errno.EROFS
    assert mount.unmount() == 0
    assert archive.read_bytes() == before != trial.read_bytes()
    assert programs.journals_beside(archive) == journals


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_shared_where_the_file_system_can(kind, disk, scratch, strace):
    archive = programs.create_archive(disk(kind) / programs.ARCHIVE, SEED)
    log = scratch / "calls"
    story = programs.run_workload(archive, "--seed", SEED, "--first", 3, "--commits", 1,
                                  before=kills.traced(log, ("ioctl", "pwrite64")))
    assert story.is_finished
    clones = re.findall(r"FICLONERANGE.*\) = (.*)", log.read_text())
    if kind == "ext4":
        assert clones == ["-1 EOPNOTSUPP (Operation not supported)"] * 2
    else:
        assert clones == ["0", "0"]  # the old ones into the journal, the new ones out of it
    expected = programs.create_archive(scratch / "expected.safetensors", SEED)
    assert programs.run_workload(expected, "--seed", SEED, "--first", 3, "--commits", 1).is_finished
    assert archive.read_bytes() == expected.read_bytes()
