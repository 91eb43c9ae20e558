# One file states the version, and the programs name the commit that they are built from.
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", REPOSITORY / "build" / "release")).resolve()
VERSION = re.search(r"project\(safetensorsfs VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
HAS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def test_only_the_build_and_the_changes_state_the_version():
    files = [path for part in ("core", "fs", "tools", "packaging", ".") for path in (REPOSITORY / part).glob("*" if part == "." else "**/*")
             if path.is_file() and path.suffix not in (".pyc", ".svg")]
    naming = {str(path.relative_to(REPOSITORY)) for path in files if re.search(rf"\b{re.escape(VERSION)}\b", path.read_text(errors="replace"))}
    # The list of symbols has the version in which each symbol appeared.
    assert naming - {"packaging/debian/libstfs0.symbols"} == {"CMakeLists.txt", "CHANGELOG.md"}


@pytest.mark.skipif(not (BUILD / "stfs").exists(), reason=f"{BUILD} is not built")
@pytest.mark.parametrize("name", ["stfs", "safetensorsfs"])
def test_a_program_prints_its_version_and_the_commit(name):
    said = subprocess.run([BUILD / name, "--version"], capture_output=True, text=True, check=True).stdout
    has_commit = (REPOSITORY / ".git").exists() and shutil.which("git") is not None
    commit = r" \([0-9a-f]{8}(, changed)?\)" if has_commit else ""
    assert re.fullmatch(rf"{name} {re.escape(VERSION)}{commit}\n", said), said


@pytest.fixture
def checkout(tmp_path):
    """A checkout with one commit, and functions that run git in it and find the commit as a build does."""

    class Checkout:
        path = tmp_path / "checkout"
        source = tmp_path / "commit.cc"

        def git(self, *arguments):
            return subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false", *arguments],
                                  cwd=self.path, capture_output=True, text=True, check=True).stdout.strip()

        def commit(self, script=REPOSITORY / "packaging/commit.cmake", source=None):
            subprocess.run(["cmake", "-D", f"SOURCE={source or self.path}", "-D", f"FILE={self.source}", "-P", script], check=True)
            return re.search(r'return "(.*)";', self.source.read_text())[1]

    made = Checkout()
    (made.path / "core").mkdir(parents=True)
    (made.path / "core/a.cc").write_text("1\n")
    if shutil.which("git"):
        made.git("init", "--quiet")
        made.git("add", ".")
        made.git("commit", "--quiet", "-m", "First")
    return made


@HAS_GIT
def test_the_commit_is_named_by_eight_digits(checkout):
    assert checkout.commit() == checkout.git("rev-parse", "HEAD")[:8]


@HAS_GIT
def test_changes_that_are_not_committed_are_named(checkout):
    head = checkout.git("rev-parse", "HEAD")[:8]
    (checkout.path / "notes").write_text("no part of a program\n")
    assert checkout.commit() == head
    (checkout.path / "core/a.cc").write_text("2\n")
    assert checkout.commit() == f"{head}, changed"
    checkout.git("commit", "--quiet", "-a", "-m", "Second")
    assert checkout.commit() == checkout.git("rev-parse", "HEAD")[:8] != head
    (checkout.path / "core/b.cc").write_text("a new source is built, too\n")
    assert checkout.commit().endswith(", changed")


@HAS_GIT
def test_an_unchanged_checkout_builds_nothing_again(checkout):
    checkout.commit()
    os.utime(checkout.source, (1, 1))
    checkout.commit()
    assert checkout.source.stat().st_mtime == 1
    (checkout.path / "core/a.cc").write_text("2\n")
    checkout.commit()
    assert checkout.source.stat().st_mtime > 1


def test_sources_without_git_have_no_commit(checkout):
    # They are unpacked below a checkout of another project.
    assert checkout.commit(source=checkout.path / "core") == ""
