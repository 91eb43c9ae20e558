# The Debian packages: their source, their content and, in long tests, the system after their installation.
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", REPOSITORY / "build" / "release")).resolve()
LONG = pytest.mark.skipif("STFS_LONG" not in os.environ, reason="long, runs with --long")
# GPU kernels take minutes more. The environment of the tests must not change the build.
ENVIRONMENT = {**{key: value for key, value in os.environ.items() if key not in ("CFLAGS", "CXXFLAGS", "LDFLAGS", "SOURCE_DATE_EPOCH")},
               "DEB_BUILD_OPTIONS": "nocuda noautodbgsym"}
NAMES = ("safetensorsfs", "libstfs0", "libstfs-dev", "python3-stfs")
VERSION = re.search(r"project\(safetensorsfs VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
# Runs a script in a temporary copy of this system: the changes by dpkg are in memory only.
IN_A_COPY = r"""
set -e
place=$1
mount -t tmpfs copy "$place"
mkdir "$place/changes" "$place/work" "$place/root"
mount -t overlay -o "lowerdir=/,upperdir=$place/changes,workdir=$place/work" copy "$place/root"
for directory in proc sys dev; do mount --rbind "/$directory" "$place/root/$directory"; done
mkdir "$place/root/packages"
cp "$2"/*.deb "$place/root/packages"
exec chroot "$place/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 bash -ec "$3"
"""


def output(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The tree of the source package."""
    build = tmp_path_factory.mktemp("source")
    output(REPOSITORY / "packaging/deb", "--source", "--build-dir", build, env=ENVIRONMENT, timeout=60)
    return build / f"safetensorsfs-{VERSION}"


@pytest.fixture(scope="module")
def python_headers():
    """The headers of the system's Python, for which the packages have the module."""
    for command, package in (("dpkg-shlibdeps", "dpkg-dev"), ("dh", "debhelper"), ("dh_python3", "dh-python")):
        if shutil.which(command) is None:
            pytest.skip(f"{package} is not installed")
    system = "/usr/bin/python3"
    headers = "import os, sysconfig; path = sysconfig.get_path('include'); print(path); os.stat(path + '/Python.h')"
    probe = subprocess.run([system, "-c", headers], capture_output=True, text=True) if os.path.exists(system) else None
    if probe is None or probe.returncode != 0:
        pytest.skip("the system's python3 has no headers here (apt-get install python3-dev)")
    return probe.stdout.strip()


def packed(build, *options):
    """The packages of a run of packaging/deb."""
    output(REPOSITORY / "packaging/deb", "--build-dir", build, *options, env=ENVIRONMENT)
    made = {path.name.split("_")[0]: path for path in build.glob("*.deb")}
    assert set(made) == set(NAMES)
    return made


@pytest.fixture(scope="module")
def quick(python_headers, tmp_path_factory):
    """The packages with the programs of the build that is tested."""
    if not (BUILD / "stfs").exists() or not list((BUILD / "python/stfs").glob("_stfs.*so")):
        pytest.skip(f"{BUILD} is not built")
    return packed(tmp_path_factory.mktemp("quick"), "--programs", BUILD)


@pytest.fixture(scope="module")
def configured(quick, python_headers):
    """The build that the rules of the packages configure. It is not compiled."""
    build, = quick["safetensorsfs"].parent.glob("safetensorsfs-*/obj-*")
    return SimpleNamespace(build=build, headers=python_headers)


@pytest.fixture(scope="module")
def packages(python_headers, tmp_path_factory):
    """The packages as packaging/deb compiles them."""
    return packed(tmp_path_factory.mktemp("deb"))


def contents(package):
    """The paths in a package, without directories, each with what it links to."""
    lines = output("dpkg-deb", "--contents", package).splitlines()
    return [line.split(maxsplit=5)[5][1:] for line in lines if not line.endswith("/")]


def depends(package):
    return re.split(r", |\n", output("dpkg-deb", "--field", package, "Depends").strip())


# --- the source package -------------------------------------------------------------------------------


def test_the_changelog_of_the_packages_is_the_changelog_of_the_project(tree):
    text = (tree / "debian/changelog").read_text()
    assert text.startswith(f"safetensorsfs ({VERSION}) unstable; urgency=medium\n\n  [ ")
    changes = re.findall(r"^- ", (REPOSITORY / "CHANGELOG.md").read_text(), re.M)
    assert len(re.findall(r"^  \* ", text, re.M)) == len(changes)
    assert max(len(line) for line in text.splitlines() if not line.startswith(" -- ")) <= 80
    assert re.search(r"^ -- .* <.*@.*>  \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d \+0000$", text, re.M)


def test_a_version_without_changes_is_not_packed(tmp_path):
    copy = tmp_path / "tree"
    (copy / "packaging").mkdir(parents=True)
    shutil.copy(REPOSITORY / "packaging/deb", copy / "packaging")
    (copy / "CMakeLists.txt").write_text("project(safetensorsfs VERSION 7.1.0 LANGUAGES CXX)\n")
    (copy / "CHANGELOG.md").write_text("# Changes\n\n## 7.0.0 (2026-01-01)\n\n- A change.\n")
    done = subprocess.run([copy / "packaging/deb", "--source"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "deb: CHANGELOG.md has no changes of the version 7.1.0\n")


def test_each_version_has_its_own_date(tmp_path):
    copy = tmp_path / "tree"
    shutil.copytree(REPOSITORY / "packaging/debian", copy / "packaging/debian")
    shutil.copy(REPOSITORY / "packaging/deb", copy / "packaging")
    (copy / "CMakeLists.txt").write_text("project(safetensorsfs VERSION 7.1.0 LANGUAGES CXX)\n")
    (copy / "CHANGELOG.md").write_text("# Changes\n\nText.\n\n## 7.1.0 (unreleased)\n\n- A.\n  B.\n\n## 7.0.0 (2026-01-02)\n\n**Part**\n- C.\n")
    output(copy / "packaging/deb", "--source", env={**ENVIRONMENT, "SOURCE_DATE_EPOCH": "86400"})
    text = re.sub("The authors.*>", "A", (copy / "build/deb/safetensorsfs-7.1.0/debian/changelog").read_text())
    assert text == ("safetensorsfs (7.1.0) unstable; urgency=medium\n  * A. B.\n\n -- A  Fri, 02 Jan 1970 00:00:00 +0000\n\n"
                    "safetensorsfs (7.0.0) unstable; urgency=medium\n\n  [ Part ]\n  * C.\n\n -- A  Fri, 02 Jan 2026 00:00:00 +0000\n")


def test_the_source_package_has_all_files_and_needs_what_the_build_needs(tree):
    for part in ("core", "fs", "tools", "packaging/man", "packaging/python"):
        sources = [path.relative_to(REPOSITORY) for path in (REPOSITORY / part).rglob("*")
                   if path.is_file() and path.suffix != ".pyc"]
        assert [path for path in sources if not (tree / path).is_file()] == []
    assert not (tree / "packaging/debian").exists() and not (tree / ".git").exists()
    control = (tree / "debian/control").read_text()
    needed = re.findall(r"^ ([a-z0-9.+-]+)", re.search(r"Build-Depends:\n((?: .*\n)+)", control)[1], re.M)
    listed = output(REPOSITORY / "packaging/dependencies", "--list", "build").split()
    assert set(needed) | {"g++"} == {*listed, "debhelper-compat", "dh-sequence-python3"}  # each system that builds packages has g++


def test_the_symbols_of_the_library_package_are_those_of_the_header(tree):
    lines = (tree / "debian/libstfs0.symbols").read_text().splitlines()
    assert lines[0] == "libstfs.so.0 libstfs0 #MINVER#" and lines[2] == " STFS_0.1@STFS_0.1 0.2.0"
    header = (REPOSITORY / "tools/libstfs/stfs.h").read_text()
    declared = sorted(set(re.findall(r"^STFS_API [^;(]*?\b(stfs_\w+)\(", header, re.M)))
    assert [line.split("@")[0].strip() for line in lines[3:]] == declared


# --- the build of the packages ------------------------------------------------------------------------


def test_the_debian_package_has_the_module_for_the_systems_python(configured):
    rules = (configured.build / "build.ninja").read_text()
    assert f"-isystem {configured.headers}\n" in rules.replace(" \n", "\n") or f"-isystem {configured.headers} " in rules
    install = (configured.build / "packaging/python/cmake_install.cmake").read_text()
    assert "${CMAKE_INSTALL_PREFIX}/lib/python3/dist-packages/stfs" in install


def test_the_programs_of_the_packages_are_hardened(configured):
    """tests/packaging/test_hardening.py checks the built files of a build with the same rules."""
    rules = (configured.build / "build.ninja").read_text()
    assert "-fstack-protector-strong" in rules and "-D_FORTIFY_SOURCE=" in rules
    for line in (line for line in rules.splitlines() if line.startswith("  LINK_FLAGS = ")):
        assert "-z,now" in line and "-z,relro" in line and "-z,noexecstack" in line, line


def test_no_program_of_the_packages_has_a_path_of_the_build(configured):
    rules = (configured.build / "build.ninja").read_text()
    assert f"-ffile-prefix-map={configured.build.parent}=." in rules
    assert "-rpath" not in rules


# --- the packages -------------------------------------------------------------------------------------


def test_each_package_has_its_files_below_usr(quick):
    files = {name: contents(package) for name, package in quick.items()}
    assert [path for paths in files.values() for path in paths if not path.startswith("/usr/")] == []
    assert {"/usr/bin/stfs", "/usr/bin/safetensorsfs", "/usr/sbin/mount.safetensorsfs",
            "/usr/lib/systemd/system/safetensorsfs@.service", "/usr/lib/systemd/user/stfs-serve@.service",
            "/usr/share/bash-completion/completions/stfs"} <= set(files["safetensorsfs"])
    library = " ".join(files["libstfs0"])
    assert re.search(rf"/libstfs\.so\.0 -> libstfs\.so\.{re.escape(VERSION)}\b", library)
    assert "/usr/include/stfs.h" in files["libstfs-dev"]
    for name in ("libstfs.so -> libstfs.so.0", "pkgconfig/stfs.pc", "cmake/stfs/stfsConfig.cmake"):
        assert any(path.endswith(f"/{name}") for path in files["libstfs-dev"]), name
    modules = {path.name for path in (REPOSITORY / "packaging/python/stfs").glob("*.py*") if path.is_file()}
    assert modules <= {path.rpartition("/")[2] for path in files["python3-stfs"] if "/dist-packages/stfs/" in path}
    for name, paths in files.items():
        assert f"/usr/share/doc/{name}/copyright" in paths


def test_the_packages_have_every_manual_and_page(quick):
    files = {path.split(" -> ")[0] for package in quick.values() for path in contents(package)}
    for page in (REPOSITORY / "packaging" / "man").glob("*.[0-9]"):
        assert f"/usr/share/man/man{page.suffix[1:]}/{page.name}.gz" in files
    for page in ("README.md", "CHANGELOG.md", *(path.name for path in (REPOSITORY / "packaging" / "doc").iterdir())):
        assert f"/usr/share/doc/safetensorsfs/{page}" in files


def test_the_packages_have_completions_where_zsh_looks(quick):
    assert "/usr/share/zsh/vendor-completions/_stfs" in contents(quick["safetensorsfs"])
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed: where it looks is known from Debian's package only")
    looked_at = output("zsh", "-fc", "print -l $fpath")
    assert "/usr/share/zsh/vendor-completions" in looked_at.splitlines()


def test_the_packages_name_what_they_depend_on(quick, python_headers):
    program = depends(quick["safetensorsfs"])
    assert "fuse3" in program and any(name.startswith("libfuse3-") for name in program)
    assert not any(name.startswith(("python3", "libstfs")) for name in program)
    assert any(name.startswith("libzstd1") for name in depends(quick["libstfs0"]))
    assert depends(quick["libstfs-dev"])[0] == f"libstfs0 (= {VERSION})"
    # From Python 3.11 on one extension serves all later versions.
    if "3.10" not in python_headers:
        module = depends(quick["python3-stfs"])
        assert "python3 (>= 3.11~)" in module and not any("<<" in name for name in module)


@LONG
def test_a_second_build_has_the_same_bytes(packages, tmp_path):
    again = packed(tmp_path / "another place")
    different = [name for name in NAMES if again[name].read_bytes() != packages[name].read_bytes()]
    assert different == []


@LONG
def test_lintian_finds_no_fault(packages):
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed")
    changes, = packages["safetensorsfs"].parent.glob("*.changes")
    said = output("lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", changes)
    assert said == ""


@LONG
def test_a_copyright_file_names_the_licence(packages):
    for package in packages.values():
        name = package.name.split("_")[0]
        files = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
        text = subprocess.run(["tar", "-xO", f"./usr/share/doc/{name}/copyright"], input=files, capture_output=True, check=True).stdout
        assert b"\nLicense: Apache-2.0\n" in text


@pytest.fixture
def in_a_copy(packages, tmp_path):
    """in_a_copy(SCRIPT) runs bash in a copy of this system, with the packages in /packages. Returns the lines that bash prints."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("mount namespaces are not allowed here")
    folder = packages["safetensorsfs"].parent

    def run(script):
        script = f"cd /tmp\n{script}"
        return output("unshare", "--mount", "--propagation", "private", "bash", "-c", IN_A_COPY, "copy", tmp_path, folder,
                      script).splitlines()

    return run


@pytest.fixture
def installed(in_a_copy):
    """The same, with the packages installed."""
    return lambda script: in_a_copy(f"dpkg --install /packages/*.deb >/dev/null\n{script}")


@LONG
def test_the_installed_packages_serve_programs_and_python(installed):
    assert installed(f"""
        stfs --version
        stfs sample m.safetensors >/dev/null
        stfs ls --names m.safetensors | wc -l
        /usr/bin/python3 -c 'import stfs; print(len(stfs.open("m.safetensors")), stfs.__version__, stfs.__file__)'
        pkg-config --modversion stfs
        pkg-config --libs stfs | xargs
        ldconfig -p | grep -c libstfs.so.0
    """) == [f"stfs {VERSION}", "21", f"21 {VERSION} /usr/lib/python3/dist-packages/stfs/__init__.py", VERSION, "-lstfs", "1"]


@LONG
def test_a_program_in_c_is_built_with_the_installed_packages(installed):
    assert installed("""
        mkdir program
        cd program
        printf '#include <stfs.h>\\n#include <stdio.h>\\nint main(void) { return puts(stfs_version()) < 0; }' >program.c
        cat >CMakeLists.txt <<'LINES'
cmake_minimum_required(VERSION 3.22)
project(program LANGUAGES C)
find_package(stfs 0.2 REQUIRED)
add_executable(program program.c)
target_link_libraries(program PRIVATE stfs::stfs)
LINES
        cmake -B built >/dev/null
        cmake --build built >/dev/null
        built/program
    """) == [VERSION]


@LONG
def test_mount_finds_the_helper_of_the_installed_package(installed):
    assert installed("""
        stfs sample m.safetensors >/dev/null
        mkdir there
        mount -t safetensorsfs -o ro,noauto m.safetensors there
        findmnt --noheadings --output FSTYPE there
        stat --format %s there/model.layers.0.input_layernorm.weight
        umount there
    """) == ["fuse.safetensorsfs", "256"]


@LONG
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_finds_the_completions_of_the_installed_package(installed):
    commands = installed("zsh -fc 'autoload -Uz compinit && compinit -u -D && print -l $_comps[stfs] $_comps[safetensorsfs]'")
    assert commands == ["_stfs", "_safetensorsfs"]


@LONG
def test_an_upgrade_from_the_single_package_moves_all_files(in_a_copy):
    """Version 0.1.0 had the library, the headers and the module in the package safetensorsfs."""
    assert in_a_copy("""
        mkdir -p old/DEBIAN
        for package in /packages/*.deb; do dpkg-deb --extract "$package" old; done
        printf '%s\\n' 'Package: safetensorsfs' 'Version: 0.1.0' 'Maintainer: A <a@example.com>' 'Description: old' \
          "Architecture: $(dpkg --print-architecture)" >old/DEBIAN/control
        dpkg-deb --build old old.deb >/dev/null
        dpkg --install old.deb >/dev/null
        dpkg --search /usr/include/stfs.h
        dpkg --install --auto-deconfigure /packages/*.deb >/dev/null  # as apt does
        dpkg --audit
        dpkg --search /usr/include/stfs.h
        dpkg --listfiles safetensorsfs | grep -c -e libstfs -e dist-packages || true
        dpkg-query --show --showformat '${Package} ${db:Status-Status}\\n' safetensorsfs
        stfs --version >/dev/null
    """) == ["safetensorsfs: /usr/include/stfs.h", "libstfs-dev:amd64: /usr/include/stfs.h".replace(
        "amd64", output("dpkg", "--print-architecture").strip()), "0", "safetensorsfs installed"]


@LONG
@pytest.mark.parametrize("how", ["--remove", "--purge"])
def test_removing_the_packages_leaves_nothing(in_a_copy, how):
    """dpkg itself and the caches of the system know more after an installation."""
    assert in_a_copy(f"""
        all() {{
          find /usr /etc /var /opt -xdev -not -path '/var/lib/dpkg*' -not -path '/var/cache/*' -not -path '/var/log/*' | sort
        }}
        all >before
        dpkg --install /packages/*.deb >/dev/null
        /usr/bin/python3 -c 'import stfs'
        ls -d /usr/lib/python3/dist-packages/stfs/__pycache__
        dpkg {how} {' '.join(NAMES)} 2>&1 | grep warning || true
        all | diff before - || true
        dpkg-query --show --showformat '${{Package}} ${{db:Status-Status}}\\n' {' '.join(NAMES)} 2>/dev/null |
          grep -v not-installed || true
    """) == ["/usr/lib/python3/dist-packages/stfs/__pycache__"]
