# Files that leave the build tree: the shared library with its header, and the source distribution of the Python module.
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", REPOSITORY / "build" / "release")).resolve()
LIBRARY = BUILD / "libstfs.so"
PROGRAM = r"""
#include <stfs.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
  stfs_error error;
  stfs_model *model = stfs_model_open(argv[argc - 1], NULL, &error);
  if (!model) return puts(error.message), 1;
  uint64_t at = 0;
  if (stfs_model_find(model, "odd", 3, &at, &error)) return puts(error.message), 1;
  stfs_tensor *tensor = stfs_tensor_open(model, at, &error);
  stfs_model_close(model);
  const unsigned char *data = stfs_tensor_data(tensor, &error);
  unsigned long sum = 0;
  for (int i = 0; i < 12345; ++i) sum += data[i];
  printf("%s %lu\n", stfs_version(), sum);
  stfs_tensor_close(tensor);
  return 0;
}
"""


def is_module_built():
    return bool(list((BUILD / "python" / "stfs").glob("_stfs.*so")))


def is_sanitized():
    return re.search(r"^STFS_SANITIZE:\w+=\S", (BUILD / "CMakeCache.txt").read_text(), re.M) is not None


def test_the_module_is_built():
    if not is_module_built():
        pytest.skip("the module stfs is not built: apt-get install python3-dev, then build again")
    if is_sanitized():
        pytest.skip("a module with a sanitizer can't be loaded into a Python without")


def exported(library):
    """{symbol: version} of what the library defines for others."""
    listing = subprocess.run(["nm", "--dynamic", "--defined-only", "--with-symbol-versions", library],
                             capture_output=True, text=True, check=True).stdout
    symbols = {}
    for line in listing.splitlines():
        _, kind, name = line.split()
        if kind != "A":
            symbols[name.split("@")[0]] = name.rpartition("@")[2] if "@" in name else ""
    return symbols


@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm (binutils)")
def test_the_library_exports_what_its_header_declares_and_nothing_else():
    header = (REPOSITORY / "tools/libstfs/stfs.h").read_text()
    declared = set(re.findall(r"^STFS_API [^;(]*?\b(stfs_\w+)\(", header, re.M))
    assert len(declared) > 40
    symbols = exported(LIBRARY)
    assert set(symbols) == declared
    assert set(symbols.values()) == {"STFS_0.1"}
    dynamic = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
    assert "[libstfs.so.0]" in dynamic
    if is_module_built():
        module, = (BUILD / "python" / "stfs").glob("_stfs.*so")
        assert set(exported(module)) == {"PyInit__stfs"}


@pytest.mark.skipif(shutil.which("pkg-config") is None or shutil.which("cc") is None, reason="there is no cc or pkg-config")
def test_a_c_program_builds_against_what_is_installed(tmp_path, archive_path, tensors):
    done = subprocess.run(["cmake", "--install", BUILD], env={**os.environ, "DESTDIR": str(tmp_path)}, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    config, = tmp_path.rglob("stfs.pc")
    (tmp_path / "program.c").write_text(PROGRAM)
    environment = {**os.environ, "PKG_CONFIG_PATH": str(config.parent), "PKG_CONFIG_SYSROOT_DIR": str(tmp_path)}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "stfs"], env=environment, capture_output=True, text=True,
                           check=True).stdout.split()
    sanitizers = re.search(r"^STFS_SANITIZE:\w+=(\S+)", (BUILD / "CMakeCache.txt").read_text(), re.M)
    if sanitizers:
        flags.append(f"-fsanitize={sanitizers[1]}")
    built = subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", tmp_path / "program.c", *flags,
                            "-o", tmp_path / "program"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    library, = tmp_path.rglob("libstfs.so.0")
    ran = subprocess.run([tmp_path / "program", archive_path], capture_output=True, text=True,
                         env={**os.environ, "LD_LIBRARY_PATH": str(library.parent)})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[1] == str(int(tensors["odd"].sum(dtype="u8")))


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no cc")
def test_a_cmake_project_finds_what_is_installed(tmp_path):
    if is_sanitized():
        pytest.skip("a library with a sanitizer can't be linked into a program without")
    root = tmp_path / "root"
    done = subprocess.run(["cmake", "--install", BUILD], env={**os.environ, "DESTDIR": str(root)}, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    config, = root.rglob("stfsConfig.cmake")
    (tmp_path / "program.c").write_text("#include <stfs.h>\n#include <stdio.h>\nint main(void) { return puts(stfs_version()) < 0; }\n")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(program LANGUAGES C)\nfind_package(stfs 0.2 REQUIRED)\n"
        "add_executable(program program.c)\ntarget_link_libraries(program PRIVATE stfs::stfs)\n")
    for command in (["cmake", "-S", tmp_path, "-B", tmp_path / "built", f"-Dstfs_DIR={config.parent}"], ["cmake", "--build", tmp_path / "built"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    version = re.search(r"project\(safetensorsfs VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
    assert subprocess.run([tmp_path / "built/program"], capture_output=True, text=True).stdout == f"{version}\n"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    out = tmp_path_factory.mktemp("sdist")
    code = "import sys; from scikit_build_core import build; build.build_sdist(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, out], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made, = out.glob("stfs-*.tar.gz")
    return made


@pytest.fixture(scope="module")
def installed(sdist, tmp_path_factory):
    """The site-packages and the Python of a fresh environment into which pip has installed the source distribution."""
    if not is_module_built():
        pytest.skip("the module stfs is not built: apt-get install python3-dev, then build again")
    out = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", out / "venv"], check=True)
    python = out / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if subprocess.run([*pip, "download", "--no-deps", "--dest", out, "scikit-build-core"], capture_output=True).returncode:
        pytest.skip("pip finds no scikit-build-core (no network?)")
    # Optimization and GPU kernels take minutes more, and bring no library.
    done = subprocess.run([*pip, "install", "-C", "cmake.build-type=Debug", "-C", "cmake.define.STFS_CUDA=OFF",
                           "-C", "cmake.define.STFS_DEBUG_INFO=0", sdist], capture_output=True, text=True, cwd=out)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    place = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True,
                           text=True, check=True).stdout.strip()
    return Path(place), python


def test_the_source_distribution_carries_all_that_its_build_reads(sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        assert all(member.isfile() or member.isdir() for member in archive), "a link would lead nowhere"
        archive.extractall(tmp_path)
    root, = tmp_path.glob("stfs-*")
    assert (root / "LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()
    for part in ("core", "fs", "tools", "packaging"):
        sources = [path.relative_to(REPOSITORY) for path in (REPOSITORY / part).rglob("*")
                   if path.suffix in (".cc", ".h", ".cu", ".py", ".map")]
        assert len(sources) > 10
        assert [path for path in sources if not (root / path).is_file()] == []
    assert not (root / "tests").exists()


@pytest.mark.timeout(1200)
def test_pip_installs_the_source_distribution_into_a_fresh_environment(installed, archive_path, tmp_path):
    place, python = installed
    code = ("import stfs, sys; model = stfs.open(sys.argv[1]); view = memoryview(model['odd'][::2]);"
            "assert view.nbytes == 6173; print(stfs.__file__, len(model), stfs.devices()[0].name)")
    ran = subprocess.run([python, "-c", code, archive_path], capture_output=True, text=True, cwd=tmp_path,
                         env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"})
    assert (ran.stdout, ran.stderr) == (f"{place}/stfs/__init__.py 27 cpu\n", "")


def needed_libraries(file):
    dynamic = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    return re.findall(r"NEEDED.*\[(.*)\]", dynamic)


def are_of_every_system(libraries):
    return libraries and all(re.match(r"lib(c|m|dl|rt|pthread)\.so|ld-linux", name) for name in libraries)


def test_the_installed_package_brings_the_command(installed, archive_path):
    _, python = installed
    command = python.parent / "stfs"
    assert are_of_every_system(needed_libraries(command)), needed_libraries(command)
    listed = subprocess.run([command, "ls", "--names", archive_path, "odd"], capture_output=True, text=True)
    assert (listed.stdout, listed.stderr, listed.returncode) == ("odd\n", "", 0)


def test_the_installed_package_is_whole_and_needs_no_library(installed):
    place, _ = installed
    names = {path.name for path in (place / "stfs").iterdir()} - {"__pycache__"}
    module, = (name for name in names if name.startswith("_stfs.") and name.endswith(".so"))
    assert names - {module} == {path.name for path in (REPOSITORY / "packaging/python/stfs").iterdir()} - {"__pycache__"}
    wheel, = place.glob("stfs-*.dist-info/WHEEL")
    assert ("-abi3-" in wheel.read_text()) == (module == "_stfs.abi3.so") == (sys.version_info >= (3, 11))
    assert are_of_every_system(needed_libraries(place / "stfs" / module))


def test_the_installed_package_names_its_version_and_its_licence(installed):
    version = re.search(r"project\(safetensorsfs VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
    about, = installed[0].glob("stfs-*.dist-info")
    assert about.name == f"stfs-{version}.dist-info"
    assert (about / "licenses" / "LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()
    assert "\nLicense-Expression: Apache-2.0\n" in (about / "METADATA").read_text()
