# packaging/Containerfile makes an image whose programs work, where a builder of images is installed.
import os
import re
import shutil
import subprocess

import pytest
from test_install import REPOSITORY

CONTAINERFILE = REPOSITORY / "packaging/Containerfile"
BUILDER = next((name for name in ("podman", "buildah", "docker") if shutil.which(name)), None)


def builder(*arguments, **more):
    return subprocess.run([BUILDER, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


@pytest.mark.skipif("STFS_LONG" not in os.environ, reason="long, runs with --long")
@pytest.mark.timeout(3600)
def test_the_image_has_programs_that_work():
    if BUILDER is None:
        pytest.skip("there is no podman, buildah or docker")
    base = re.search(r"^ARG BASE=(.*)$", CONTAINERFILE.read_text(), re.M)[1]
    if builder(*(["from", "--name", "stfs-base", base] if BUILDER == "buildah" else ["pull", base])).returncode:
        pytest.skip(f"there is no image {base} (no network?)")
    build = ["bud"] if BUILDER == "buildah" else ["build"]
    made = builder(*build, "-t", "stfs-test", "-f", CONTAINERFILE, REPOSITORY)
    assert made.returncode == 0, made.stdout[-3000:]
    try:
        if BUILDER == "buildah":
            builder("from", "--name", "stfs-run", "stfs-test")
            ran = builder("run", "stfs-run", "--", "sh", "-c", "stfs sample /m.safetensors && safetensorsfs --version")
        else:
            ran = builder("run", "--rm", "stfs-test", "sh", "-c", "stfs sample /m.safetensors && safetensorsfs --version")
        assert ran.returncode == 0, ran.stdout
        assert "wrote /m.safetensors" in ran.stdout and "safetensorsfs 0." in ran.stdout
    finally:
        if BUILDER == "buildah":
            builder("rm", "stfs-run", "stfs-base")
        builder("rmi", "stfs-test")
