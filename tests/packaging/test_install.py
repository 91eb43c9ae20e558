# `cmake --install` puts every file where the system looks for it.
import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", REPOSITORY / "build" / "release")).resolve()
pytestmark = pytest.mark.skipif(not (BUILD / "stfs").exists(), reason=f"{BUILD} is not built")


def cache_value(name):
    for line in (BUILD / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split("=", 1)[1]
    return None


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The root of an installation, and the prefix below it."""
    root = tmp_path_factory.mktemp("installed")
    result = subprocess.run(["cmake", "--install", BUILD], env={**os.environ, "DESTDIR": str(root)},
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    return root, root / cache_value("CMAKE_INSTALL_PREFIX").lstrip("/")


@pytest.mark.parametrize("path", [
    "bin/safetensorsfs", "bin/stfs", "share/man/man8/safetensorsfs.8", "share/man/man8/mount.safetensorsfs.8",
    "share/man/man1/stfs.1", "share/man/man1/stfs-put.1", "share/man/man7/safetensorsfs-semantics.7",
    "lib/systemd/system/safetensorsfs@.service", "lib/systemd/user/stfs-serve@.service",
    "lib/systemd/user/stfs-pull@.service", "share/doc/safetensorsfs/examples/pull.conf",
    "share/doc/safetensorsfs/examples/fstab", "share/doc/safetensorsfs/examples/service.conf",
    "share/doc/safetensorsfs/examples/serve.conf", "share/doc/safetensorsfs/examples/first-steps.ipynb",
    "share/doc/safetensorsfs/examples/pod.yaml",
    "share/doc/safetensorsfs/copyright",
])
def test_is_installed(installed, path):
    assert (installed[1] / path).is_file()


def test_the_library_is_installed_for_those_who_run_and_those_who_build(installed):
    library = installed[1] / cache_value("CMAKE_INSTALL_LIBDIR")
    assert (library / "libstfs.so.0").resolve().is_file() and (library / "libstfs.so").resolve().is_file()
    assert (installed[1] / "include" / "stfs.h").read_bytes() == (REPOSITORY / "tools/libstfs/stfs.h").read_bytes()
    config = (library / "pkgconfig" / "stfs.pc").read_text()
    assert f"prefix={cache_value('CMAKE_INSTALL_PREFIX')}\n" in config and "-lstfs" in config and "@" not in config


def test_the_mount_helper_is_in_sbin_and_finds_the_program(installed):
    root, prefix = installed
    helper = root / "sbin" / "mount.safetensorsfs"
    assert helper.stat().st_mode & stat.S_IXOTH
    program = "/" + str((prefix / "bin" / "safetensorsfs").relative_to(root))
    assert f"\nprogram={program}\n" in helper.read_text()


def test_every_manual_and_completion_of_the_sources_is_installed(installed):
    names = {path.name for path in installed[1].rglob("*") if path.is_file()}
    for page in (REPOSITORY / "packaging" / "man").glob("*.[0-9]"):
        assert (installed[1] / "share/man" / f"man{page.suffix[1:]}" / page.name).read_bytes() == page.read_bytes()
    for completion in (REPOSITORY / "packaging" / "completions").glob("*"):
        if completion.is_file():
            installed_as = completion.stem if completion.suffix == ".bash" else completion.name
            assert installed_as in names


def test_every_page_of_the_documentation_is_installed(installed):
    pages = sorted((REPOSITORY / "packaging" / "doc").glob("*.md"))
    assert {"costs.md", "python-and-c.md", "serve.md", "threats.md", "weight-sync.md"} <= {page.name for page in pages}
    for page in pages:
        assert (installed[1] / "share/doc/safetensorsfs" / page.name).read_bytes() == page.read_bytes()


def test_links_of_the_installed_pages_lead_to_installed_files(installed):
    folder = installed[1] / "share/doc/safetensorsfs"
    found = {page.name: re.findall(r"\]\(([^)#\s]+)\)", page.read_text()) for page in folder.glob("*.md")}
    assert {"serve.md", "costs.md", "examples/fstab", "copyright"} <= set(found["README.md"])
    assert [(page, link) for page, links in found.items() for link in links if not (folder / link).is_file()] == []
    # Apart from its links, the installed README is the README of the sources.
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", page.read_text())
             for page in (folder / "README.md", REPOSITORY / "README.md")]
    assert plain[0] == plain[1]


def test_no_template_is_left_unfilled(installed):
    root, prefix = installed
    for path in (root / "sbin" / "mount.safetensorsfs", prefix / "lib/systemd/system/safetensorsfs@.service",
                 prefix / "lib/systemd/user/stfs-serve@.service", prefix / "lib/systemd/user/stfs-pull@.service"):
        assert "@CMAKE" not in path.read_text()


def test_the_installed_programs_run(installed):
    for name in ("safetensorsfs", "stfs"):
        result = subprocess.run([installed[1] / "bin" / name, "--version"], capture_output=True, timeout=60)
        assert result.returncode == 0, name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(("kind", "name", "program"), [("system", "safetensorsfs@.service", "safetensorsfs"),
                                                       ("user", "stfs-serve@.service", "stfs"),
                                                       ("user", "stfs-pull@.service", "stfs")])
def test_the_unit_is_valid(installed, tmp_path, kind, name, program):
    unit = installed[1] / "lib/systemd" / kind / name
    # The program is not installed at its final path here. The check is about the lines of the unit.
    copy = tmp_path / name
    copy.write_text(unit.read_text().replace(
        "/" + str((installed[1] / "bin" / program).relative_to(installed[0])), "/bin/true"))
    result = subprocess.run(["systemd-analyze", f"--{kind}", "verify", "--man=no", copy],
                            capture_output=True, text=True, timeout=60)
    complaints = [line for line in result.stderr.splitlines() if name.partition(".")[0] in line]
    assert complaints == []


# Options of systemd that give a service a mount namespace: no mount that it makes reaches the host.
HIDING = {"ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateNetwork", "PrivateIPC",
          "PrivateUsers", "ProtectProc", "ProcSubset", "ProtectControlGroups", "ProtectKernelLogs", "ProtectKernelModules",
          "ProtectKernelTunables", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths",
          "TemporaryFileSystem", "BindPaths", "BindReadOnlyPaths", "MountFlags", "MountAPIVFS", "RootDirectory", "RootImage",
          "DynamicUser", "LogNamespace"}


def test_the_units_sandbox_leaves_the_mount_visible(installed):
    lines = (installed[1] / "lib/systemd/system/safetensorsfs@.service").read_text().splitlines()
    given = {line.partition("=")[0] for line in lines if "=" in line and not line.startswith("#")}
    assert not given & HIDING
    assert {"NoNewPrivileges", "CapabilityBoundingSet", "SystemCallFilter", "RestrictAddressFamilies", "DevicePolicy"} <= given


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_the_mounts_unit_closed(installed):
    """Without the sandbox the exposure is 9.6 of 10. The rest comes from options in HIDING, and from rights that serving
    needs."""
    unit = installed[1] / "lib/systemd/system/safetensorsfs@.service"
    done = subprocess.run(["systemd-analyze", "security", "--no-pager", "--offline=yes", "--threshold=50", unit],
                          capture_output=True, text=True, timeout=60)
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze is older than 250: it can't look at a file")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_server_starts_as_its_unit_says(installed, tmp_path):
    # There is no systemd here. The test runs the unit's command with the example's settings and systemd's specifiers filled
    # in.
    unit = (installed[1] / "lib/systemd/user/stfs-serve@.service").read_text()
    example = (installed[1] / "share/doc/safetensorsfs/examples/serve.conf").read_text()
    settings = dict(line.split("=", 1) for line in example.splitlines() if not line.startswith("#"))
    subprocess.run([BUILD / "stfs", "sample", tmp_path / "m.safetensors"], check=True, capture_output=True)
    settings["SOURCE"] = str(tmp_path / "m.safetensors")
    words = next(line for line in unit.splitlines() if line.startswith("ExecStart=")).partition("=")[2].split()
    for name, value in (*((f"${{{key}}}", text) for key, text in settings.items()), ("%t", str(tmp_path)), ("%i", "m")):
        words = [word.replace(name, value) for word in words]
    with subprocess.Popen([BUILD / "stfs", *words[1:]], stdout=subprocess.PIPE, text=True) as server:
        assert json.loads(server.stdout.readline())["generation"] == 1
        assert (tmp_path / "stfs-m.sock").is_socket()
        server.terminate()
