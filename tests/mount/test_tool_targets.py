# The meaning of each file of a mount for each verb of stfs and for stfs.open: the table of tools/target/target.h, with the kernel.
import json
import os
import subprocess
import sys

import archive_file
import ml_dtypes
import mounted
import numpy as np
import pytest

pytestmark = [pytest.mark.sequential, pytest.mark.library]

STFS = mounted.BUILD / "stfs"
W = np.arange(12, dtype="f4").reshape(3, 4)
TENSORS = {"w": W, "model.b": np.arange(6).astype(ml_dtypes.bfloat16)}
NEW = np.full((3, 4), 7, "f4")

MODEL, TENSOR, FILE, ROOT, OWN = "the model", "the tensor", "the file", "name the root", "name the own file"
# path -> (Use::Model, Use::Bytes, Use::Tensors, Use::Change), as in tools/target/target.h
TABLE = {
    "": (MODEL, MODEL, MODEL, MODEL),
    "w": (MODEL, TENSOR, TENSOR, TENSOR),
    ".safetensors/archive.safetensors": (MODEL, MODEL, MODEL, ROOT),
    ".safetensors/npy/w.npy": (MODEL, FILE, OWN, OWN),
    ".safetensors/float32/w.npy": (MODEL, FILE, OWN, OWN),
    ".safetensors/slice/w[0:1]": (MODEL, FILE, OWN, OWN),
    ".safetensors/slice/w[0:1].npy": (MODEL, FILE, OWN, OWN),
    ".safetensors/slice/w[...]": (MODEL, FILE, OWN, OWN),  # as large as the tensor, and no tensor's file either
    ".safetensors/transactions/t/w": (MODEL, FILE, OWN, OWN),
    ".safetensors/header.json": (MODEL, FILE, ROOT, ROOT),
    ".safetensors/metadata.json": (MODEL, FILE, ROOT, ROOT),
    ".safetensors/stats.json": (MODEL, FILE, ROOT, ROOT),
    ".safetensors": (ROOT, ROOT, ROOT, ROOT),
    ".safetensors/slice": (ROOT, ROOT, ROOT, ROOT),
    ".safetensors/transactions": (ROOT, ROOT, ROOT, ROOT),
}


def run(*command, code=None):
    done = subprocess.run([str(word) for word in command], capture_output=True, timeout=60 * mounted.PATIENCE)
    assert done.returncode in ((0, 1) if code is None else (code,)), (command, done.stderr.decode())
    return done


def names_in(document):
    return {row["name"] for row in document["tensors"]}


def said(done, to_meaning, own, root):
    """The meaning that a verb gave to the path, judged by its output."""
    if done.returncode == 0:
        return to_meaning(done.stdout)
    errors = done.stderr.decode()
    if errors.endswith(f"name the tensor's own file, {own}\n"):
        return OWN
    return ROOT if f"name the mount, {root}" in errors else errors


class Place:
    def __init__(self, mount, archive):
        self.root, self.archive, self.own = mount.path, archive, mount.path / "w"
        os.mkdir(mount / ".safetensors/transactions/t")
        (mount / ".safetensors/transactions/t/w").write_bytes(NEW.tobytes())

    def path(self, relative):
        return self.root / relative if relative else self.root

    def is_changed(self):
        """Whether w has the new bytes, which it then loses again."""
        content = self.own.read_bytes()
        assert content in (NEW.tobytes(), W.tobytes())
        self.own.write_bytes(W.tobytes())
        return content == NEW.tobytes()


@pytest.fixture
def place(tmp_path, mounts):
    archive = archive_file.save_with_reference(tmp_path / "m.safetensors", TENSORS)
    return Place(mounts(archive), archive)


def of_tensors(found):
    return {("w",): TENSOR, ("model.b", "w"): MODEL}[tuple(sorted(found))]


def verbs(place, tmp_path, path):
    """Each verb: the column of the table, its arguments, and the meaning in its output."""
    raw = tmp_path / "raw"
    raw.write_bytes(NEW.tobytes())
    with_name = path == place.root or path.name == "archive.safetensors"
    name = ["w"] if with_name else []
    loaded = lambda out: of_tensors(names_in(json.loads(out)))  # noqa: E731
    counted = lambda out: {1: TENSOR, 2: MODEL}[json.loads(out)["tensors"]]  # noqa: E731
    return {
        "info": (0, ["info", "--json", path], lambda out: MODEL if json.loads(out)["tensors"] == 2 else out),
        "recover": (0, ["recover", "--json", path], lambda out: MODEL if json.loads(out)["path"] == str(place.archive) else out),
        "ls": (2, ["ls", "--json", path], loaded),
        "verify": (2, ["verify", "--json", path], loaded),
        "diff": (2, ["diff", "--json", path, place.archive], counted),
        "diff with it": (2, ["diff", "--json", place.archive, path], counted),
        "upload": (2, ["upload", "--device", "cpu", "--json", path], loaded),
        "slice": (2, ["slice", "--json", path, f"{''.join(name)}[0]"],
                  lambda out: (MODEL if with_name else TENSOR) if json.loads(out)["shape"] == [4] else out),
        "put --from-tensor": (2, ["put", place.archive, "w", "--from-tensor", "w", path],
                              lambda _: MODEL if with_name else TENSOR),
        "serve": (2, ["serve", "--device", "cpu", "--socket", tmp_path / "socket", path], None),
        "put": (3, ["put", path, *name, raw], lambda _: MODEL if with_name else TENSOR),
    }


@pytest.mark.once
def test_every_verb_reads_the_table(place, tmp_path):
    for relative, row in TABLE.items():
        path = place.path(relative)
        for verb, (column, arguments, to_meaning) in verbs(place, tmp_path, path).items():
            if verb == "serve" and row[column] not in (OWN, ROOT):
                continue
            assert said(run(STFS, *arguments), to_meaning, place.own, place.root) == row[column], (relative, verb)
        assert place.is_changed() == (row[3] in (MODEL, TENSOR)), relative


def test_cat_of_a_view_prints_what_cat_prints(place):
    for relative, row in TABLE.items():
        path, meant = place.path(relative), row[1]
        done = run(STFS, "cat", path, *(["w"] if meant == MODEL else []))
        if meant == ROOT:
            assert said(done, None, place.own, place.root) == ROOT, relative
        elif path.name == "stats.json":
            assert json.loads(done.stdout)["tensors"] == 2
        else:
            assert done.stdout == (path if meant == FILE else place.own).read_bytes(), (relative, done.stderr)
        if meant in (TENSOR, FILE):
            assert b"NAME needs an archive or a mount" in run(STFS, "cat", path, "w", code=2).stderr, relative


def test_apply_changes_a_mount_alone(place, tmp_path):
    delta = archive_file.save_with_reference(tmp_path / "delta.safetensors", {"w": NEW})
    for relative, row in TABLE.items():
        done = run(STFS, "apply", place.path(relative), delta)
        if row[3] == TENSOR:
            assert b"is a tensor's file: name the mount or the archive, or use `stfs put`" in done.stderr
        else:
            assert said(done, lambda _: MODEL, place.own, place.root) == row[3], relative
        assert place.is_changed() == (done.returncode == 0), relative


def test_python_reads_the_table(place):
    if not list((mounted.BUILD / "python" / "stfs").glob("_stfs.*so")) or mounted.is_sanitized():
        pytest.skip("the Python module is not built, or can't be loaded into a Python without a sanitizer")
    program = """
import json, stfs, sys
def meaning(path):
    try:
        return sorted(stfs.open(path))
    except (OSError, ValueError) as error:
        return str(error)
print(json.dumps([meaning(path) for path in sys.argv[1:]]))
"""
    done = subprocess.run([sys.executable, "-c", program, *map(place.path, TABLE)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(mounted.BUILD / "python")})
    assert done.returncode == 0, done.stderr
    for (relative, row), found in zip(TABLE.items(), json.loads(done.stdout)):
        if isinstance(found, list):
            assert of_tensors(found) == row[2], relative
        else:
            wanted = f"name the tensor's own file, {place.own}" if row[2] == OWN else f"name the mount, {place.root}"
            assert row[2] in (OWN, ROOT) and wanted in found, (relative, found)


def test_the_own_file_of_a_tree_and_a_view_by_another_path(tmp_path, mounts):
    """Through a link, and from within the directory."""
    mount = mounts(archive_file.save_with_reference(tmp_path / "m.safetensors", TENSORS), "layout=tree")
    os.symlink(mount / ".safetensors/slice", tmp_path / "slices")
    (tmp_path / "raw").write_bytes(bytes(12))
    view = "model.b[...]"
    for name, directory in ((tmp_path / "slices" / view, "/"), (view, mount / ".safetensors/slice")):
        done = subprocess.run([STFS, "put", name, tmp_path / "raw"], cwd=directory, capture_output=True, text=True)
        assert done.returncode == 1 and f"name the tensor's own file, {mount / 'model' / 'b'}\n" in done.stderr
    assert (mount / "model/b").read_bytes() == TENSORS["model.b"].tobytes()
    run(STFS, "put", mount / "model/b", tmp_path / "raw", code=0)


def test_diff_of_two_tensors_files_compares_these_two(tmp_path, mounts):
    mount = mounts(archive_file.save_with_reference(tmp_path / "m.safetensors", {"v": W, "w": W, "x": W + 1}))
    run(STFS, "diff", mount / "v", mount / "w", code=0)
    (row,) = json.loads(run(STFS, "diff", "--json", mount / "v", mount / "x", code=1).stdout)["differences"]
    assert (row["a"]["name"], row["b"]["name"], row["statistics"]["largest_difference"]) == ("v", "x", 1)
    assert b"v and x" in run(STFS, "diff", mount / "v", mount / "x", code=1).stdout
    assert b"GLOB needs archives or mounts" in run(STFS, "diff", mount.path, mount / "x", "v", code=2).stderr


def test_a_view_is_a_file_to_take_bytes_from(place, tmp_path):
    """The FILE of put is any file: a view's bytes, as they are."""
    run(STFS, "put", place.archive, "w", place.root / ".safetensors/npy/w.npy", code=0)
    run(STFS, "put", "--raw", place.archive, "w", place.root / ".safetensors/slice/w[::-1]", code=0)
    assert (place.root / "w").read_bytes() == W[::-1].tobytes()

