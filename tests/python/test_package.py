# What leaves the build tree: the shared library with its header, and the wheel.
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
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


def python_that_builds_wheels():
    """A Python with what pip would fetch for a build: tests do without a network."""
    code = ("import setuptools, pip; from setuptools.command import build_ext; v = int(setuptools.__version__.split('.')[0]);"
            "assert v >= 61; v >= 71 or __import__('wheel'); import sysconfig, os;"
            "assert os.path.exists(sysconfig.get_path('include') + '/Python.h')")
    for python in (sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        if python and subprocess.run([python, "-c", code], capture_output=True).returncode == 0:
            return python
    return None


def builder():
    python = python_that_builds_wheels()
    if python is None:
        pytest.skip("no Python here has pip, setuptools, wheel and its headers (apt-get install python3-pip python3-dev)")
    return python


def copy_sources(out):
    """What of the repository the package needs: setuptools writes beside its sources."""
    source = out / "source"
    source.mkdir()
    for part in ("core", "fs", "tools", "packaging", "CMakeLists.txt", "README.md", "LICENSE"):
        origin = REPOSITORY / part
        if origin.is_dir():
            shutil.copytree(origin, source / part)
        else:
            shutil.copy(origin, source / part)
    return source / "packaging" / "python"


def make_wheel(out, package, **environment):
    """@param package  a directory or an sdist."""
    done = subprocess.run([builder(), "-m", "pip", "wheel", "--no-build-isolation", "--no-index", "--no-deps", "--quiet",
                           "--wheel-dir", out, package], capture_output=True, text=True, cwd=out,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made, = out.glob("stfs-*.whl")
    return made


def built_module():
    if not is_module_built() or is_sanitized():
        pytest.skip("the module stfs is not built, or with a sanitizer")
    module, = (BUILD / "python" / "stfs").glob("_stfs.*so")
    return str(module)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Of the module that is built: from the sources it takes minutes."""
    module, out = built_module(), tmp_path_factory.mktemp("wheel")
    return make_wheel(out, copy_sources(out), STFS_BUILT_MODULE=module)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Far from any clone."""
    out = tmp_path_factory.mktemp("sdist")
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    done = subprocess.run([builder(), "-c", code, out], cwd=copy_sources(out), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    shutil.rmtree(out / "source")
    made, = out.glob("stfs-*.tar.gz")
    return made


def test_the_wheel_holds_the_package(wheel):
    version = re.search(r"project\(safetensorsfs VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
    assert wheel.name.startswith(f"stfs-{version}-cp3")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for name in ("__init__.py", "_model.py", "_tensor.py", "_upload.py", "py.typed", "_stfs.pyi"):
        assert f"stfs/{name}" in names
    assert ("stfs/_stfs.abi3.so" in names) == ("-abi3-" in wheel.name)


def test_the_wheel_holds_the_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        # Newer setuptools has a folder for them.
        names = [name for name in archive.namelist() if re.fullmatch(r"stfs-[^/]+\.dist-info/(licenses/)?LICENSE", name)]
        assert [archive.read(name) for name in names] == [(REPOSITORY / "LICENSE").read_bytes()]
        metadata, = (archive.read(name).decode() for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    assert "\nLicense: Apache-2.0\n" in metadata


def test_the_source_distribution_carries_all_that_its_build_reads(sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        assert all(member.isfile() or member.isdir() for member in archive), "a link would lead nowhere"
        archive.extractall(tmp_path)
    root, = tmp_path.glob("stfs-*")
    assert (root / "LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()
    done = subprocess.run(["cmake", "-S", root / "source", "-B", tmp_path / "build", "-G", "Ninja", "-DSTFS_TESTS=OFF",
                           "-DSTFS_CUDA=OFF", f"-DPython3_EXECUTABLE={builder()}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compiled = {Path(command["file"]) for command in json.loads((tmp_path / "build/compile_commands.json").read_text())}
    assert root / "source/packaging/python/extension/module.cc" in compiled
    # CMake has looked for each source that it names; headers are found while compiling.
    for part in ("core", "fs", "tools", "packaging/python"):
        headers = [path.relative_to(REPOSITORY) for path in (REPOSITORY / part).rglob("*.h")]
        assert [path for path in headers if not (root / "source" / path).is_file()] == []


def test_the_source_distribution_installs(sdist, tmp_path):
    wheel = make_wheel(tmp_path, sdist, STFS_BUILT_MODULE=built_module())
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "stfs/__init__.py" in names and not [name for name in names if "source" in name]


@pytest.mark.skipif("STFS_LONG" not in os.environ, reason="long, runs with --long")
@pytest.mark.timeout(6000)
def test_pip_builds_the_source_distribution_that_it_finds_by_name(sdist, tmp_path, archive_path):
    python, place = builder(), tmp_path / "installed"
    # Kernels take minutes more, and bring no library.
    done = subprocess.run([python, "-m", "pip", "install", "--no-build-isolation", "--no-index", "--find-links", sdist.parent,
                           "--no-deps", "--quiet", "--target", place, "stfs"], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "CMAKE_ARGS": "-DSTFS_CUDA=OFF"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    module, = (place / "stfs").glob("_stfs.*so")
    needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.run(["readelf", "-d", module], capture_output=True, text=True,
                                                             check=True).stdout)
    assert needed and all(re.match(r"lib(c|m|dl|rt|pthread)\.so|ld-linux", name) for name in needed), needed
    licence, = (path for path in place.glob("stfs-*.dist-info/**/LICENSE"))
    assert licence.read_bytes() == (REPOSITORY / "LICENSE").read_bytes()
    ran = subprocess.run([python, "-c", "import stfs, sys; print(stfs.__file__, len(stfs.open(sys.argv[1])))", archive_path],
                         capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(place)})
    assert (ran.stdout, ran.stderr) == (f"{place}/stfs/__init__.py 27\n", "")


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
