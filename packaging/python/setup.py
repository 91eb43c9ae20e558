"""Builds the extension with the repository's own CMake files, all libraries of it inside.

A source distribution carries what of the repository the build reads, in `source/`: it needs no clone.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
CARRIED = HERE / "source"
ROOT = CARRIED if CARRIED.is_dir() else HERE.parents[1]
# What CMake reads, but for the tests. The distribution itself grows as packaging/python/stfs-VERSION.
SOURCES = ("CMakeLists.txt", "LICENSE", "README.md", "core", "fs", "tools", "packaging")
NOT_CARRIED = shutil.ignore_patterns("stfs-[0-9]*", "build", "dist", "*.egg-info", "__pycache__", "*.pyc", ".*")
# The buffer protocol is a part of the stable ABI from 3.11 on: one wheel serves all later versions.
IS_STABLE = sys.version_info >= (3, 11)


def version():
    try:
        text = (ROOT / "CMakeLists.txt").read_text()
    except FileNotFoundError:
        sys.exit(f"{ROOT} has no CMakeLists.txt: build in a clone of the repository, or from a source distribution of it")
    return re.search(r"project\(safetensorsfs VERSION (\S+)", text)[1]


class CMakeBuild(build_ext):
    def build_extension(self, extension):
        built = os.environ.get("STFS_BUILT_MODULE")  # by the same sources already
        if built:
            Path(self.get_ext_fullpath(extension.name)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(built, self.get_ext_fullpath(extension.name))
            return
        build = Path(self.build_temp).resolve() / "cmake"
        package = Path(self.get_ext_fullpath(extension.name)).resolve().parent
        subprocess.run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DSTFS_TESTS=OFF",
                        "-DSTFS_STANDALONE=ON", f"-DPython3_EXECUTABLE={sys.executable}",
                        f"-DSTFS_PYTHON_PACKAGE={package}", *shlex.split(os.environ.get("CMAKE_ARGS", ""))], check=True)
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        subprocess.run(["cmake", "--build", build, "--target", "stfs_python", "--parallel", jobs], check=True)


class SourceDistribution(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        carried = Path(base_dir) / "source"
        carried.mkdir()
        for name in SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, carried / name, ignore=NOT_CARRIED)
            else:
                shutil.copy(ROOT / name, carried / name)
        # In a clone it is a link that leads out of the distribution.
        (Path(base_dir) / "LICENSE").unlink(missing_ok=True)
        shutil.copy(ROOT / "LICENSE", base_dir)


setup(version=version(), license="Apache-2.0", ext_modules=[Extension("stfs._stfs", sources=[], py_limited_api=IS_STABLE)],
      cmdclass={"build_ext": CMakeBuild, "sdist": SourceDistribution},
      options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE else {})
