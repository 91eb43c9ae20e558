# What leaves the build tree: the shared library with its header, and the wheel.
import os
import re
import shutil
import subprocess
import sys
import zipfile
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
  stfs_model *model = stfs_open(argv[argc - 1], NULL, &error);
  if (!model) return puts(error.message), 1;
  uint64_t at = 0;
  if (stfs_find(model, "odd", 3, &at, &error)) return puts(error.message), 1;
  stfs_tensor *tensor = stfs_tensor_open(model, at, &error);
  stfs_close(model);
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
    header = (REPOSITORY / "tools/upload/stfs.h").read_text()
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


def python_that_builds_wheels():
    """A Python with what pip would fetch for a build: tests do without a network."""
    code = ("import setuptools, pip; from setuptools.command import build_ext; v = int(setuptools.__version__.split('.')[0]);"
            "assert v >= 61; v >= 71 or __import__('wheel'); import sysconfig, os;"
            "assert os.path.exists(sysconfig.get_path('include') + '/Python.h')")
    for python in (sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        if python and subprocess.run([python, "-c", code], capture_output=True).returncode == 0:
            return python
    return None


def make_wheel(out, **environment):
    python = python_that_builds_wheels()
    if python is None:
        pytest.skip("no Python here has pip, setuptools, wheel and its headers (apt-get install python3-pip python3-dev)")
    # A copy: setuptools writes beside its sources.
    source = out / "source"
    source.mkdir()
    for part in ("core", "fs", "tools", "packaging", "CMakeLists.txt", "README.md", "LICENSE"):
        origin = REPOSITORY / part
        if origin.is_dir():
            shutil.copytree(origin, source / part)
        else:
            shutil.copy(origin, source / part)
    done = subprocess.run([python, "-m", "pip", "wheel", "--no-build-isolation", "--no-index", "--no-deps", "--quiet",
                           "--wheel-dir", out, source / "packaging" / "python"], capture_output=True, text=True,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made, = out.glob("stfs-*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Of the module that is built: from the sources it takes minutes."""
    if not is_module_built() or is_sanitized():
        pytest.skip("the module stfs is not built, or with a sanitizer")
    module, = (BUILD / "python" / "stfs").glob("_stfs.*so")
    return make_wheel(tmp_path_factory.mktemp("wheel"), STFS_BUILT_MODULE=str(module))


def test_the_wheel_holds_the_package(wheel):
    version = re.search(r"project\(safetensorsfs VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
    assert wheel.name.startswith(f"stfs-{version}-cp3")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for name in ("__init__.py", "_model.py", "_tensor.py", "_upload.py", "py.typed", "_stfs.pyi"):
        assert f"stfs/{name}" in names
    assert ("stfs/_stfs.abi3.so" in names) == ("-abi3-" in wheel.name)


@pytest.mark.skipif("STFS_LONG" not in os.environ, reason="long, runs with --long")
@pytest.mark.timeout(1800)
def test_a_wheel_from_the_sources_needs_nothing_beside_the_interpreter(tmp_path):
    # Kernels take minutes more, and bring no library.
    with zipfile.ZipFile(make_wheel(tmp_path, CMAKE_ARGS="-DSTFS_CUDA=OFF")) as archive:
        archive.extractall(tmp_path / "unpacked")
    module, = (tmp_path / "unpacked" / "stfs").glob("_stfs.*so")
    needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.run(["readelf", "-d", module], capture_output=True, text=True,
                                                             check=True).stdout)
    assert needed and all(re.match(r"lib(c|m|dl|rt|pthread)\.so|ld-linux", name) for name in needed), needed


def test_the_wheel_installs_into_a_fresh_environment(wheel, tmp_path, archive_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    builder = python_that_builds_wheels()
    place = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True,
                           text=True, check=True).stdout.strip()
    done = subprocess.run([builder, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", place, wheel],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = ("import stfs, sys; model = stfs.open(sys.argv[1]); view = memoryview(model['odd'][::2]);"
            "assert view.nbytes == 6173 and stfs.__file__.startswith(sys.prefix); print(len(model), stfs.devices()[0].name)")
    ran = subprocess.run([python, "-c", code, archive_path], capture_output=True, text=True, cwd=tmp_path,
                         env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "27 cpu\n"
