"""Builds the extension with the repository's own CMake files, all libraries of it inside."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parents[2]
# The buffer protocol is a part of the stable ABI from 3.11 on: one wheel serves all later versions.
IS_STABLE = sys.version_info >= (3, 11)


def version():
    try:
        text = (ROOT / "CMakeLists.txt").read_text()
    except FileNotFoundError:
        sys.exit(f"stfs is built inside its repository: {ROOT} has no CMakeLists.txt")
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


setup(version=version(), ext_modules=[Extension("stfs._stfs", sources=[], py_limited_api=IS_STABLE)],
      cmdclass={"build_ext": CMakeBuild},
      options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE else {})
