"""Each recipe of packaging/doc/recipes.md is run as it is written, and prints the lines that the page shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mounted
import pytest
from session import missing_from, script_of, typed_in

pytestmark = pytest.mark.once

PAGE = (mounted.REPOSITORY / "packaging" / "doc" / "recipes.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", PAGE, re.M))
FILES = "Files to try them on"
RECIPES = [title for title in SECTIONS if title != FILES]


def run(home, section):
    """Types a section in a home directory, with this build and this Python."""
    # The mounts need the programs of the build by their names, and no other file of its directory.
    programs = home / ".programs"
    programs.mkdir(exist_ok=True)
    for name in ("stfs", "safetensorsfs"):
        if not (programs / name).exists():
            (programs / name).symlink_to(mounted.BUILD / name)
    path = [programs, Path(sys.executable).parent, os.environ["PATH"]]
    environment = {**os.environ, "HOME": str(home), "PATH": ":".join(map(str, path)), "LC_ALL": "C",
                   "PYTHONPATH": str(mounted.BUILD / "python")}
    return subprocess.run(["bash", "-c", script_of(section)], cwd=home, env=environment, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60 * mounted.PATIENCE)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    home = tmp_path_factory.mktemp("files")
    done = run(home, SECTIONS[FILES])
    assert done.returncode == 0, done.stdout
    return home


@pytest.fixture
def home(files, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(files, home, symlinks=True)
    yield home
    for name in ("mnt", "other"):
        mounted.unmount_by_force(home / name)


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_works_as_it_is_written(title, home):
    section = SECTIONS[title]
    for program in ("rsync", "restic", "ganesha.nfsd", "nfs-cat"):
        if re.search(rf"^ {{4}}\$ {re.escape(program)} ", section, re.M) and shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    if "ganesha.nfsd" in section and os.geteuid() != 0:
        pytest.skip("needs root")
    if re.search(r"from stfs|import .*\bstfs\b", section) and (not list((mounted.BUILD / "python" / "stfs").glob("_stfs.*so")) or mounted.is_sanitized()):
        pytest.skip("the Python module is not built, or can't be loaded into a Python without a sanitizer")
    done = run(home, section)
    assert done.returncode == 0, done.stdout
    assert missing_from(done.stdout, section) == [], done.stdout
    assert not any(mounted.mount_entry(home / name) for name in ("mnt", "other"))


def test_each_recipe_has_commands_and_a_line_in_the_list():
    listed = re.findall(r"^- \[(.*)\]\(#(.*)\)$", PAGE, re.M)
    assert [title for title, _ in listed] == [FILES, *RECIPES] and len(RECIPES) >= 8
    assert all(place == title.lower().replace(" ", "-") for title, place in listed)
    assert all(list(typed_in(section)) for section in SECTIONS.values())
