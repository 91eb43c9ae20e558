# `.safetensors/`: the model in other shapes, through a real mount, against NumPy and the reference library.
import errno
import json
import mmap
import os
import shutil
import subprocess

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import archive_file

NUMPY_DTYPES = {"BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I16": np.int16, "U16": np.uint16,
                "F16": np.float16, "I32": np.int32, "U32": np.uint32, "F32": np.float32,
                "C64": np.complex64, "F64": np.float64, "I64": np.int64, "U64": np.uint64}
FLOATING = ["F32", "F64", "F16", "BF16", "F8_E5M2", "F8_E4M3", "F4"]


def every_dtype(path):
    """One tensor per dtype, of random bytes, its name unaligned in the file."""
    random = np.random.default_rng(7)
    tensors = [("odd", "U8", [3], b"abc")]
    for dtype, kind in NUMPY_DTYPES.items():
        data = random.integers(0, 2 if dtype == "BOOL" else 256, 24 * np.dtype(kind).itemsize, np.uint8)
        tensors.append((f"t.{dtype}", dtype, [4, 6], data.tobytes()))
    for dtype, bits in {"BF16": 16, "F8_E5M2": 8, "F8_E4M3": 8, "F4": 4}.items():
        tensors.append((f"t.{dtype}", dtype, [4, 6], random.bytes(24 * bits // 8)))
    tensors.append(("t.scalar", "F32", [], np.float32(7).tobytes()))
    tensors.append(("t.empty", "F32", [0, 5], b""))
    return archive_file.write_raw(path, tensors, {"format": "pt", "q\"uote": "ü\n"})


def views(mount):
    return mount / ".safetensors"


@pytest.fixture
def all_dtypes(tmp_path, mounts):
    path = every_dtype(tmp_path / "all.safetensors")
    mount = mounts(path)
    mount.archive = archive_file.ArchiveFile(path)
    return mount


def test_an_archive_without_tensors_gets_its_first_one(tmp_path, mounts):
    path = archive_file.write_raw(tmp_path / "empty.safetensors", [])
    mount = mounts(path)
    assert os.listdir(mount.path) == os.listdir(views(mount) / "npy") == []
    first = np.arange(12, dtype="<f4").reshape(3, 4)
    np.save(views(mount) / "npy/first.npy", first)
    assert np.array_equal(np.load(views(mount) / "npy/first.npy"), first)
    assert (mount / "first").read_bytes() == first.tobytes()
    (mount / "first").write_bytes((2 * first).tobytes())
    assert np.array_equal(safetensors.numpy.load_file(path)["first"], 2 * first)


def test_the_directory_lists_its_views_and_is_not_listed_itself(mount):
    assert ".safetensors" not in os.listdir(mount.path)
    assert sorted(os.listdir(views(mount))) == sorted(
        ["npy", "slice", "float32", "header.json", "metadata.json", "stats.json", "archive.safetensors",
         "log", "pretrained", "transactions", "committed"])
    assert os.listdir(views(mount) / "slice") == []
    assert sorted(os.listdir(views(mount) / "npy")) == sorted(f"{name}.npy" for name in os.listdir(mount.path))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("mode", ["r", None])
def test_numpy_loads_each_of_its_dtypes(all_dtypes, dtype, mode):
    array = np.load(views(all_dtypes) / "npy" / f"t.{dtype}.npy", mmap_mode=mode)
    assert array.dtype == np.dtype(NUMPY_DTYPES[dtype]) and array.shape == (4, 6)
    assert array.tobytes() == all_dtypes.archive.tensor(f"t.{dtype}")
    del array


@pytest.mark.parametrize("dtype, kind, shape", [("BF16", "<u2", (4, 6)), ("F8_E4M3", "|u1", (4, 6)),
                                                ("F8_E5M2", "|u1", (4, 6)), ("F4", "|u1", (4, 3))])
def test_what_numpy_lacks_comes_as_unsigned_integers(all_dtypes, dtype, kind, shape):
    path = views(all_dtypes) / "npy" / f"t.{dtype}.npy"
    array = np.load(path)
    assert array.dtype == np.dtype(kind) and array.shape == shape
    assert array.tobytes() == all_dtypes.archive.tensor(f"t.{dtype}")
    assert os.getxattr(path, "user.safetensors.dtype").decode() == dtype
    assert os.getxattr(path, "user.safetensors.shape").decode() == "[4,6]"


def test_scalars_and_empty_tensors_load(all_dtypes):
    scalar = np.load(views(all_dtypes) / "npy" / "t.scalar.npy")
    assert scalar.shape == () and scalar == 7
    assert np.load(views(all_dtypes) / "npy" / "t.empty.npy").shape == (0, 5)


def float32_of(dtype, data):
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, NUMPY_DTYPES[dtype]).astype(np.float32)


@pytest.mark.parametrize("dtype", ["F32", "F64", "F16", "BF16"])
def test_float32_is_the_converted_tensor(all_dtypes, dtype):
    with np.errstate(all="ignore"):
        want = float32_of(dtype, all_dtypes.archive.tensor(f"t.{dtype}"))
    found = np.load(views(all_dtypes) / "float32" / f"t.{dtype}.npy", mmap_mode="r")
    assert found.dtype == np.float32 and found.shape == (4, 6)
    np.testing.assert_array_equal(np.asarray(found).reshape(-1), want)


def test_float32_has_the_floating_tensors_only(all_dtypes):
    listed = set(os.listdir(views(all_dtypes) / "float32"))
    assert listed == {f"t.{dtype}.npy" for dtype in FLOATING} | {"t.scalar.npy", "t.empty.npy"}
    for name in listed:
        assert np.load(views(all_dtypes) / "float32" / name).dtype == np.float32
    assert not (views(all_dtypes) / "float32" / "t.I32.npy").exists()
    assert not (views(all_dtypes) / "float32" / "t.C64.npy").exists()


def test_pieces_of_a_view_at_any_place_are_the_whole(all_dtypes):
    random = np.random.default_rng(3)
    for place in ("npy/t.F64.npy", "float32/t.F4.npy", "float32/t.BF16.npy", "archive.safetensors"):
        fd = os.open(views(all_dtypes) / place, os.O_RDONLY | os.O_DIRECT)  # past the page cache
        try:
            whole = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
            assert len(whole) == os.fstat(fd).st_size
            for _ in range(200):
                at, size = random.integers(0, len(whole)), random.integers(1, 300)
                assert os.pread(fd, size, at) == whole[at:at + size]
        finally:
            os.close(fd)


def test_the_header_and_the_metadata_are_json(all_dtypes):
    _, header = all_dtypes.archive.header()
    text = (views(all_dtypes) / "header.json").read_bytes()
    assert json.loads(text) == header and not text.endswith(b" ")
    assert json.loads((views(all_dtypes) / "metadata.json").read_bytes()) == header["__metadata__"]


def test_without_metadata_there_is_an_empty_object(tmp_path, mounts):
    mount = mounts(archive_file.write_bytes_tensors(tmp_path / "m.safetensors", {"a": b"x"}))
    assert (views(mount) / "metadata.json").read_bytes() == b"{}"


def test_the_archive_view_is_what_the_reference_library_opens(all_dtypes):
    path = views(all_dtypes) / "archive.safetensors"
    raw = path.read_bytes()
    assert (8 + int.from_bytes(raw[:8], "little")) % 4096 == 0
    found = {name: (entry["dtype"], bytes(entry["data"])) for name, entry in safetensors.deserialize(raw)}
    want = {name: (dtype, data) for name, (dtype, _, data) in all_dtypes.archive.reference().items()}
    assert found == want


def patch(mount, name, data, how):
    if how == "transaction":
        transaction = views(mount) / "transactions" / "t"
        transaction.mkdir()
        (transaction / name).write_bytes(data)
        os.rename(transaction, views(mount) / "committed" / "t")
        os.rmdir(views(mount) / "committed" / "t")
        return
    with open(mount / name, "r+b" if how == "shared" else "wb", buffering=0) as file:
        file.write(data)


@pytest.mark.parametrize("how", ["isolated", "shared", "transaction"])
def test_after_a_commit_no_view_shows_the_old_bytes(tmp_path, mounts, how):
    random = np.random.default_rng(5)
    fresh = lambda: random.standard_normal((64, 64)).astype(np.float32)  # noqa: E731
    arrays = {"before": fresh(), "w": fresh(), "x": fresh()}
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(arrays, path)
    mount = mounts(path)
    places = [views(mount) / "npy" / "w.npy", views(mount) / "float32" / "w.npy",
              views(mount) / "slice" / "w[:,:].npy"]
    mapped = [np.load(place, mmap_mode="r") for place in places]
    whole = safetensors.safe_open(str(views(mount) / "archive.safetensors"), "numpy")
    held = [open(place, "rb", buffering=0) for place in places]
    column = views(mount) / "slice" / "w[:,3]"
    for _ in range(50):
        for array in mapped:
            np.testing.assert_array_equal(array, arrays["w"])
        arrays["w"] = fresh()
        patch(mount, "w", arrays["w"].tobytes(), how)
        for array, file in zip(mapped, held):
            np.testing.assert_array_equal(array, arrays["w"])
            np.testing.assert_array_equal(
                np.frombuffer(os.pread(file.fileno(), 1 << 20, 128), np.float32), arrays["w"].reshape(-1))
        assert column.read_bytes() == arrays["w"][:, 3].tobytes()
        np.testing.assert_array_equal(whole.get_tensor("w"), arrays["w"])
        np.testing.assert_array_equal(whole.get_tensor("x"), arrays["x"])
    for file in held:
        file.close()
    del whole, mapped, array


def test_the_figures_are_new_with_each_open(mount):
    stats = views(mount) / "stats.json"
    first = json.loads(stats.read_text())
    name = next(name for name, (dtype, _, _, _) in mount.archive.layout().items() if mount.archive.size(name) > 8)
    data = mount.archive.tensor(name)
    patch(mount, name, data[::-1], "isolated")
    with pytest.raises(OSError) as refused:
        (mount / name).write_bytes(data[:-1])
    assert refused.value.errno == errno.EINVAL
    second = json.loads(stats.read_text())
    assert second["commits"] == first["commits"] + 1
    assert second["refused_commits"] == first["refused_commits"] + 1
    assert second["bytes_written"] >= first["bytes_written"] + len(data)
    assert second["requests"]["write"] > first["requests"]["write"]
    assert second["uptime_seconds"] > first["uptime_seconds"]
    assert second["since_last_read"]["seconds"] > 0
    with open(stats, "rb") as held:
        assert held.read() == os.pread(held.fileno(), 1 << 20, 0), "one open shows one snapshot"


def by_cp(path, directory):
    subprocess.run(["cp", path, directory / "copy"], check=True, capture_output=True)
    return (directory / "copy").read_bytes()


def by_map(path, _):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(mapped) == os.fstat(file.fileno()).st_size
        return bytes(mapped)


def by_read(path, _):
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read()
        assert len(content) == size == os.fstat(file.fileno()).st_size
    return content


def by_program(command):
    return lambda path, _: subprocess.run(["sh", "-c", command, "sh", path], capture_output=True, check=True).stdout


@pytest.mark.parametrize("options", ["", "ro"])
def test_the_figures_are_as_large_as_their_text(archive_path, tmp_path, mounts, options):
    mount = mounts(archive_path, options)
    stats = views(mount) / "stats.json"
    ways = [by_cp, by_map, by_read, *map(by_program, ['cat "$1"', 'cat < "$1"', 'dd status=none bs=7 if="$1"', 'tail -c +1 "$1"'])]
    for read in ways * 2:  # the kernel's cache of one open must not help the next open
        content = read(stats, tmp_path)
        assert json.loads(content)["tensors"] > 0
        assert content.endswith(b"}\n") and b" \n" not in content
        before = os.stat(stats)
        assert len(content) - 64 < before.st_size < len(content) + 64  # other figures, a few digits more or less
        assert os.stat(stats).st_ino == before.st_ino


def test_jq_reads_the_figures(mount):
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    assert int(by_program('jq .tensors "$1"')(views(mount) / "stats.json", None)) == len(os.listdir(mount.path))


def test_a_read_only_mount_has_fresh_figures_too(archive_path, mounts):
    mount = mounts(archive_path, "ro")
    counts = [json.loads((views(mount) / "stats.json").read_text())["requests"]["lookup"] for _ in range(3)]
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("options", ["", "ro"])
def test_views_are_read_only(archive_path, mounts, options):
    mount = mounts(archive_path, options)
    name = next(name for name in os.listdir(views(mount) / "npy"))
    writable = (f"npy/{name}", "archive.safetensors") if options == "" else ()
    for place in (f"npy/{name}", f"float32/{name}", "archive.safetensors", "stats.json", "header.json"):
        path = views(mount) / place
        if place in writable or not path.exists():
            continue
        assert path.stat().st_mode & 0o222 == 0
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            with pytest.raises(OSError) as refused:
                os.close(os.open(path, flags))
            assert refused.value.errno == errno.EROFS
        due = errno.EROFS if options == "ro" else errno.EPERM
        for act in (os.unlink, lambda path: os.truncate(path, 0), lambda path: os.chmod(path, 0o666),
                    lambda path: os.rename(path, str(path) + "x"), lambda path: os.mkdir(str(path) + "d")):
            with pytest.raises(OSError) as refused:
                act(path)
            assert refused.value.errno == due


@pytest.mark.parametrize("options", ["", "layout=tree"])
def test_names_that_a_directory_cannot_hold_have_their_views(tmp_path, mounts, options):
    names = ["", ".", "..", "a/b", "a%b", "n\0l", "w[0]", "w", "a.b.c", "x" * 251, "x" * 252, "x" * 255, "ü" * 126,
             "ü" * 127, "y" * 300, "y" * 300 + "z", ".safetensors", "t.npy", "t"]
    contents = {name: f"content {number}".encode() for number, name in enumerate(names)}
    mount = mounts(archive_file.write_bytes_tensors(tmp_path / "m.safetensors", contents), options)
    found = {}
    for listed in os.listdir(views(mount) / "npy"):
        path = views(mount) / "npy" / listed
        assert len(os.fsencode(listed)) <= 255 and listed.endswith(".npy")
        found[os.getxattr(path, "user.safetensors.name").decode()] = np.load(path).tobytes()
    assert found == contents
    assert (views(mount) / "slice" / "w[0][2:4]").read_bytes() == contents["w[0]"][2:4]
    assert (views(mount) / "slice" / "w[2:4]").read_bytes() == contents["w"][2:4]
