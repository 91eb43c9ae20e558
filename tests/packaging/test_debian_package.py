# The Debian package: its dependencies, its content and, in a long test, the system after its installation.
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
# Runs a script in a temporary copy of this system: the changes by dpkg are in memory only.
IN_A_COPY = r"""
set -e
place=$1
mount -t tmpfs copy "$place"
mkdir "$place/changes" "$place/work" "$place/root"
mount -t overlay -o "lowerdir=/,upperdir=$place/changes,workdir=$place/work" copy "$place/root"
for directory in proc sys dev; do mount --rbind "/$directory" "$place/root/$directory"; done
cp "$2" "$place/root/package.deb"
exec chroot "$place/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 bash -ec "$3"
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The build of packaging/deb, configured and not compiled."""
    system = "/usr/bin/python3"
    headers = "import os, sysconfig; path = sysconfig.get_path('include'); print(path); os.stat(path + '/Python.h')"
    probe = subprocess.run([system, "-c", headers], capture_output=True, text=True) if os.path.exists(system) else None
    if probe is None or probe.returncode != 0:
        pytest.skip("the system's python3 has no headers here (apt-get install python3-dev)")
    build = tmp_path_factory.mktemp("deb")
    done = subprocess.run(["cmake", "--preset", "deb", "-B", build, "-D", "STFS_CUDA=OFF"], cwd=REPOSITORY,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--preset deb" in (REPOSITORY / "packaging/deb").read_text()
    return SimpleNamespace(build=build, headers=probe.stdout.strip())


def test_the_debian_package_has_the_module_for_the_systems_python(packed):
    rules = (packed.build / "build.ninja").read_text()
    assert f"-isystem {packed.headers}\n" in rules.replace(" \n", "\n") or f"-isystem {packed.headers} " in rules
    install = (packed.build / "packaging/python/cmake_install.cmake").read_text()
    assert "${CMAKE_INSTALL_PREFIX}/lib/python3/dist-packages/stfs" in install


def test_the_debian_package_depends_on_the_python_that_loads_the_module(packed):
    config = (packed.build / "CPackConfig.cmake").read_text()
    depends = re.search(r'set\(CPACK_DEBIAN_PACKAGE_DEPENDS "([^"]*)"\)', config)[1].split(", ")
    least = min((3, 11), tuple(int(part) for part in re.search(r"python(3)\.(\d+)", packed.headers).groups()))
    assert depends[:2] == ["fuse3", f"python3 (>= {least[0]}.{least[1]}~)"]
    # Before Python 3.11 the stable ABI has no buffer protocol.
    assert depends[2:] == ([] if least == (3, 11) else [f"python3 (<< 3.{least[1] + 1})"])


def test_the_debian_package_is_hardened(packed):
    """tests/packaging/test_hardening.py checks the built files of a build with the same rules."""
    rules = (packed.build / "build.ninja").read_text()
    assert "-fstack-protector-strong" in rules and "-D_FORTIFY_SOURCE=" in rules
    for line in (line for line in rules.splitlines() if line.startswith("  LINK_FLAGS = ")):
        assert "-z,now" in line and "-z,relro" in line and "-z,noexecstack" in line, line


def test_the_debian_package_has_every_manual(packed):
    install = (packed.build / "packaging/cmake_install.cmake").read_text()
    for page in (REPOSITORY / "packaging" / "man").glob("*.[0-9]"):
        place, = re.findall(rf'DESTINATION "\$\{{CMAKE_INSTALL_PREFIX\}}/([^"]*)"[^)]*/man/{re.escape(page.name)}"', install)
        assert place == f"share/man/man{page.suffix[1:]}"


def test_the_debian_package_has_completions_where_zsh_looks(packed):
    install = (packed.build / "packaging/cmake_install.cmake").read_text()
    place, = re.findall(r'DESTINATION "\$\{CMAKE_INSTALL_PREFIX\}/([^"]*)"[^)]*completions/_stfs"', install)
    assert place == "share/zsh/vendor-completions"
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed: where it looks is known from Debian's package only")
    looked_at = subprocess.run(["zsh", "-fc", "print -l $fpath"], capture_output=True, text=True, check=True).stdout
    assert f"/usr/{place}" in looked_at.splitlines()


@pytest.mark.skipif(shutil.which("dpkg-shlibdeps") is None, reason="dpkg-dev is not installed")
@pytest.mark.skipif(not (BUILD / "CPackConfig.cmake").exists(), reason=f"{BUILD} is not built")
def test_the_debian_package_names_what_it_depends_on(tmp_path):
    result = subprocess.run(["cpack", "-G", "DEB", "-B", tmp_path, "--config", BUILD / "CPackConfig.cmake"],
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    package, = tmp_path.glob("*.deb")
    fields = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, text=True, check=True).stdout
    depends = next(line for line in fields.splitlines() if line.startswith("Depends:"))
    assert "fuse3" in depends.replace(",", " ").split()
    assert "libfuse3-" in depends
    contents = subprocess.run(["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True).stdout
    assert "./sbin/mount.safetensorsfs" in contents
    assert "/libstfs.so.0 -> libstfs.so" in contents and "/include/stfs.h" in contents


@pytest.fixture(scope="module")
def package(packed):
    """The package that packaging/deb makes, without kernels for GPUs, which need minutes."""
    if shutil.which("dpkg-shlibdeps") is None:
        pytest.skip("dpkg-dev is not installed")
    for command in (["cmake", "--build", packed.build], ["cpack", "-G", "DEB"]):
        done = subprocess.run(command, cwd=packed.build, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made, = packed.build.glob("*.deb")
    return made


@pytest.fixture
def installed(package, tmp_path):
    """installed(SCRIPT) runs bash in a copy of this system with the package installed. Returns what bash prints."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("mount namespaces are not allowed here")

    def run(script):
        script = f"dpkg --install /package.deb >/dev/null\ncd /tmp\n{script}"
        done = subprocess.run(["unshare", "--mount", "--propagation", "private", "bash", "-c", IN_A_COPY, "copy", tmp_path,
                               package, script], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


@LONG
def test_what_is_packed_depends_on_python_and_has_a_licence(package):
    fields = subprocess.run(["dpkg-deb", "--field", package, "Depends"], capture_output=True, text=True, check=True).stdout
    names = [field.split()[0] for field in fields.split(", ")]
    assert {"fuse3", "python3", "libc6"} <= set(names) and any(name.startswith("libfuse3-") for name in names)
    files = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    licence = subprocess.run(["tar", "-xO", "./usr/share/doc/safetensorsfs/copyright"], input=files, capture_output=True,
                             check=True).stdout
    assert licence == (REPOSITORY / "LICENSE").read_bytes()


@LONG
def test_the_installed_package_serves_programs_and_python(installed):
    assert installed("""
        stfs sample m.safetensors >/dev/null
        stfs ls --names m.safetensors | wc -l
        /usr/bin/python3 -c 'import stfs; print(len(stfs.open("m.safetensors")), stfs.__file__)'
        pkg-config --libs stfs | xargs
        ldconfig -p | grep -c libstfs.so.0
    """) == ["90", "90 /usr/lib/python3/dist-packages/stfs/__init__.py", "-lstfs", "1"]


@LONG
def test_mount_finds_the_helper_of_the_installed_package(installed):
    assert installed("""
        stfs sample m.safetensors >/dev/null
        mkdir there
        mount -t safetensorsfs -o ro,noauto m.safetensors there
        findmnt --noheadings --output FSTYPE there
        stat --format %s there/dtypes.U64
        umount there
    """) == ["fuse.safetensorsfs", "256"]


@LONG
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_finds_the_completions_of_the_installed_package(installed):
    commands = installed("zsh -fc 'autoload -Uz compinit && compinit -u -D && print -l $_comps[stfs] $_comps[safetensorsfs]'")
    assert commands == ["_stfs", "_safetensorsfs"]


@LONG
def test_removing_the_package_leaves_nothing(installed):
    assert installed("""
        dpkg --listfiles safetensorsfs >files
        /usr/bin/python3 -c 'import stfs'
        ls -d /usr/lib/python3/dist-packages/stfs/__pycache__
        dpkg --remove safetensorsfs 2>&1 | grep warning || true
        grep -E 'safetensorsfs|stfs' files | while read -r file; do [[ ! -e $file ]] || echo "$file"; done
    """) == ["/usr/lib/python3/dist-packages/stfs/__pycache__"]
