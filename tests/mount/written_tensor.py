# The tensor that tests of writing overwrite, and their check of the whole archive, which also finds a changed byte elsewhere.
import subprocess

T = "layers.0.weight"  # 308,224 bytes, amid others


def read(path):
    with open(path, "rb") as file:
        return file.read()


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def check_shown(mount, expected):
    """The archive is as expected, and the mount shows the same for every tensor."""
    expected.check()
    for name in expected.layout:
        assert read(mount / name) == expected.tensor(name), name
