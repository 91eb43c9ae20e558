# The messages of the scripts to a person: help, wrong arguments, missing tools. No script builds or mounts here.
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
QUICKSTART = REPOSITORY / "packaging" / "quickstart"
DEPENDENCIES = REPOSITORY / "packaging" / "dependencies"
DEBIAN_13 = REPOSITORY / "tests" / "debian13"
AARCH64 = REPOSITORY / "tests" / "aarch64"
SCRIPTS = [QUICKSTART, DEPENDENCIES, REPOSITORY / "packaging" / "compile", REPOSITORY / "packaging" / "deb",
           REPOSITORY / "tests" / "run", DEBIAN_13, AARCH64, REPOSITORY / ".ci" / "run"]
script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")


def run(*command, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, **kwargs)


@script
def test_help_explains_usage_and_exit_status(script):
    result = run(script, "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: ")
    assert "Exit status:" in result.stdout
    assert result.stderr == ""


@script
def test_an_unknown_option_is_wrong_usage(script):
    result = run(script, "--no-such-option")
    assert result.returncode == 2
    assert "--no-such-option" in result.stderr and "--help" in result.stderr


@script
def test_works_from_another_directory(script, tmp_path):
    assert run(script, "--help", cwd=tmp_path).returncode == 0


def test_dependencies_imports_no_module_of_the_current_directory(tmp_path):
    """Another user may have put it there, and root calls the script."""
    (tmp_path / "planted.py").write_text("open('imported', 'w')")
    (tmp_path / "list").write_text("build no-such-package python:planted for this test\n")
    result = run(DEPENDENCIES, "--check", "build", cwd=tmp_path, env={**os.environ, "STFS_PACKAGES": "list"})
    assert (result.returncode, result.stdout) == (1, "no-such-package\n")
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("script", [DEBIAN_13, AARCH64], ids=lambda path: path.name)
def test_another_system_is_one_skipped_test_without_root(tmp_path, script):
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = run(script, "--keep", tmp_path / "keep", env=environment)
    assert result.returncode == 0
    assert "debian13: needs root" in result.stdout and result.stdout.endswith("\n0 passed, 0 failed, 1 skipped\n")
    result = run(script, "--counts", tmp_path / "counts", "--keep", tmp_path / "keep", env=environment)
    assert (result.returncode, (tmp_path / "counts").read_text()) == (
        0, "0 0 1\nskipped debian13: needs root to make a root directory and to enter it\n")
    assert "debian13: needs root" in result.stdout and "skipped" not in result.stdout
    assert not (tmp_path / "keep").exists()


class TestQuickstart:
    def wrong(self, *arguments):
        result = run(QUICKSTART, *arguments)
        assert result.returncode == 2, result.stdout + result.stderr
        assert "Usage: packaging/quickstart [ARCHIVE MOUNTPOINT]" in result.stderr
        assert "[2/4]" not in result.stdout, "it should not have begun to build"
        return result.stderr

    def test_an_archive_without_a_mount_point(self, tmp_path):
        assert "mounted" in self.wrong(tmp_path / "a.safetensors")

    def test_too_many_arguments(self):
        assert "too many" in self.wrong("a", "b", "c")

    def test_an_archive_that_is_not_there(self, tmp_path):
        missing = tmp_path / "missing.safetensors"
        assert f"{missing}: there is no such archive" in self.wrong(missing, tmp_path / "mnt")
        assert not (tmp_path / "mnt").exists()

    def test_a_mount_point_that_is_a_file(self, tmp_path):
        archive = tmp_path / "a.safetensors"
        archive.touch()
        assert "not a directory" in self.wrong(archive, archive)

    def test_a_mount_point_that_is_not_empty(self, tmp_path):
        archive = tmp_path / "a.safetensors"
        archive.touch()
        assert "not empty" in self.wrong(archive, tmp_path)

    def test_a_mount_point_with_another_file_system(self, tmp_path):
        archive = tmp_path / "a.safetensors"
        archive.touch()
        result = run(QUICKSTART, archive, "/proc")
        assert result.returncode == 1
        assert "/proc: another file system is mounted here" in result.stderr


def test_a_configured_directory_keeps_how_sources_are_grouped(tmp_path):
    """Another choice would compile everything again, after `cmake --preset release` or beside quickstart in .ci/run."""
    asked = tmp_path / "asked"
    (tmp_path / "cmake").write_text(f'#!/bin/sh\necho "$*" >>"{asked}"\n')
    (tmp_path / "cmake").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for command in range(2):
        assert run(REPOSITORY / "packaging" / "compile", "--build-dir", tmp_path / "build", env=environment).returncode == 0
        (tmp_path / "build" / "CMakeCache.txt").touch()
    first, second = (line for line in asked.read_text().splitlines() if "--preset" in line)
    assert "CMAKE_UNITY_BUILD" in first and "CMAKE_UNITY_BUILD" not in second


class TestDependencies:
    def listed(self, *groups):
        result = run(DEPENDENCIES, "--list", *groups)
        assert result.returncode == 0
        return result.stdout.split()

    def test_list_names_the_packages_of_a_group(self):
        assert {"cmake", "g++", "libfuse3-dev"} <= set(self.listed("build"))
        assert "fuse3" in self.listed("run")
        assert "catch2" in self.listed("test")

    def test_optional_packages_are_listed_whatever_files_are_there(self, tmp_path):
        (tmp_path / "tests").mkdir()  # a pattern `test?` would match it
        for cwd in (tmp_path, REPOSITORY):
            assert {"jq", "dpkg-dev"} <= set(run(DEPENDENCIES, "--list", "test", cwd=cwd).stdout.split())

    def test_no_group_is_build_and_run(self):
        assert self.listed() == self.listed("build", "run")

    def test_every_package_is_listed_once(self):
        packages = self.listed("build", "run", "test", "ci")
        assert len(packages) == len(set(packages))

    def test_the_debian_packages_are_built_with_what_a_minimal_system_lacks(self):
        assert self.listed("deb") == ["dpkg-dev", "debhelper", "dh-python", "lintian"]
        build = (REPOSITORY / "packaging" / "deb").read_text()
        assert build.index("dependencies\" build deb") < build.index("dpkg-buildpackage -us")

    def test_a_package_of_several_groups_is_needed_if_one_of_them_needs_it(self, tmp_path):
        packages = tmp_path / "packages.txt"
        packages.write_text("test?,deb  stfs-no-such-package  command:stfs-no-such-command  for this test\n")
        environment = {**os.environ, "STFS_PACKAGES": str(packages), "PATH": str(self.without_apt(tmp_path))}
        assert [run(DEPENDENCIES, *groups, env=environment).returncode
                for groups in (["test"], ["deb"], ["test", "deb"], ["ci"])] == [0, 1, 1, 0]

    def test_an_unknown_group_is_wrong_usage(self):
        result = run(DEPENDENCIES, "--list", "everything")
        assert result.returncode == 2 and "everything" in result.stderr

    def test_nothing_is_said_where_all_is_there(self):
        result = run(DEPENDENCIES, "build")
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")

    def without_apt(self, tmp_path):
        """Returns a PATH with the tools of a system without apt."""
        tools = tmp_path / "bin"
        tools.mkdir()
        for name in ("bash", "dirname", "awk", "env", "id"):
            (tools / name).symlink_to(run("sh", "-c", f"command -v {name}").stdout.strip())
        return tools

    @pytest.fixture
    def unknown_package(self, tmp_path):
        packages = tmp_path / "packages.txt"
        packages.write_text("build  stfs-no-such-package  command:stfs-no-such-command  for this test\n")
        return {**os.environ, "STFS_PACKAGES": str(packages)}

    def test_check_names_what_is_missing_and_changes_nothing(self, unknown_package):
        result = run(DEPENDENCIES, "--check", env=unknown_package)
        assert (result.returncode, result.stdout) == (1, "stfs-no-such-package\n")

    def test_without_apt_it_names_what_is_missing(self, unknown_package, tmp_path):
        result = run(DEPENDENCIES, env={**unknown_package, "PATH": str(self.without_apt(tmp_path))})
        assert result.returncode == 1
        assert re.search(r"stfs-no-such-package +for this test", result.stderr)

    def test_a_user_without_sudo_is_told_the_command(self, unknown_package, tmp_path):
        tools = tmp_path / "bin"
        tools.mkdir()
        for name in ("bash", "dirname", "awk", "env", "dpkg-query"):
            found = run("sh", "-c", f"command -v {name}").stdout.strip()
            if found:
                (tools / name).symlink_to(found)
        (tools / "id").write_text("#!/bin/sh\necho 1000\n")
        (tools / "apt-get").write_text("#!/bin/sh\nexit 1\n")
        for name in ("id", "apt-get"):
            (tools / name).chmod(0o755)
        result = run(DEPENDENCIES, env={**unknown_package, "PATH": str(tools)})
        assert result.returncode == 1
        assert "apt-get install -y --no-install-recommends stfs-no-such-package" in result.stderr


def test_tests_get_the_signals_that_they_send():
    """This also holds if the caller of tests/run ignores the signals, as nohup does, and each & of a script."""
    with open("/proc/self/status") as status:
        ignored = int(next(line.split()[1] for line in status if line.startswith("SigIgn")), 16)
    assert [number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT) if ignored >> (number - 1) & 1] == []


@pytest.mark.parametrize(("stage", "skip", "status"), [
    ("release", "crash.test_explorer::test_nothing_is_torn_or_lost[random-10]: long, runs with --long", 0),
    ("sanitize", "crash_tests: crash: nothing is torn: exhaustive, runs without a sanitizer", 0),
    ("release", "crash_tests: crash: nothing is torn: exhaustive, runs without a sanitizer", 1),
    ("release", "mount.test_io::test_new: it seems too hard", 1),
    ("release", "mount.test_serve::test_a_start_can_be_cancelled: no room for 8 GiB here: it crashed", 1),
])
def test_ci_knows_which_skips_to_expect(stage, skip, status):
    assert run(REPOSITORY / ".ci" / "run", "--expects", stage, skip).returncode == status


def test_a_condition_that_does_not_hold_expects_no_skip(tmp_path):
    """A tool that is installed is no reason to skip."""
    jq = tmp_path / "jq"
    jq.write_text("#!/bin/sh\n")
    jq.chmod(0o755)
    found = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = (REPOSITORY / ".ci" / "run", "--expects", "release", "mount.test_views::test_jq: jq is not installed")
    assert run(*command, env=found).returncode == 1
    (tmp_path / "bash").symlink_to(shutil.which("bash"))
    for name in ("dirname", "uname", "sort"):
        (tmp_path / name).symlink_to(shutil.which(name))
    jq.unlink()
    assert run(shutil.which("bash"), *command, env={"PATH": str(tmp_path)}).returncode == 0


def test_tests_run_refuses_an_unknown_part():
    result = run(REPOSITORY / "tests" / "run", "--part", "everything")
    assert result.returncode == 2 and "unit" in result.stderr


def test_the_readme_begins_with_the_two_commands():
    readme = (REPOSITORY / "README.md").read_text()
    commands = re.findall(r"^ {4}(\./\S+.*)$|^(\./\S+.*)$", readme, re.M)
    first = [(a or b).split()[0] for a, b in commands][:2]
    assert first == ["./packaging/quickstart", "./tests/run"]
    assert [line.split()[0] for line in readme.splitlines()[1:] if line][:2] == first


def test_the_readme_is_read_in_two_minutes():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 130


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_the_pages_of_the_repository_are_short(page):
    assert len((REPOSITORY / page).read_text().splitlines()) <= 60


PAGES = [*(REPOSITORY / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
         *sorted((REPOSITORY / "packaging" / "doc").glob("*.md")),
         *(REPOSITORY / part / "README.md" for part in ("core", "fs", "tools", "tests"))]


def links(page):
    return [target for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()) if "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_of_a_page_lead_to_files(page):
    assert [target for target in links(page) if not (page.parent / target).is_file()] == []


def test_the_readme_leads_to_every_page():
    # stfs(1) leads to the pages of the verbs (test_manual.py).
    manuals = {page for page in (REPOSITORY / "packaging" / "man").glob("[ls]*.[0-9]") if not page.name.startswith("stfs-")}
    pages = {*PAGES, *manuals} - {REPOSITORY / "README.md"}
    assert pages <= {(REPOSITORY / target).resolve() for target in links(REPOSITORY / "README.md")}
