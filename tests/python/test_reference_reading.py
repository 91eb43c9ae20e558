# safe_open() and load_file() return and raise what the reference library does, for NumPy.
import os
import pathlib
import threading

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import stfs
import stfs.numpy
from both_libraries import check_same, outcome

ODD_NAMES = ["", " ", "a/b", "a.b", "é", "\U0001f9e0", 'quote"', "back\\slash", "line\nbreak", "nul\0", "\x7f", "..", "x" * 300]
TENSORS = {"m": np.arange(60, dtype="f4").reshape(3, 4, 5), "v": np.arange(7, dtype="i8"), "zero": np.array(5.0),
           "none": np.zeros((0, 4), "f2"), "b": np.array([True, False]), "c": np.array([1 + 2j], "c8"),
           "bf": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
           **{dtype: np.arange(5).astype(dtype) for dtype in ("i1", "i2", "i4", "u1", "u2", "u4", "u8", "f2", "f8")},
           **{name: np.array([at], "u1") for at, name in enumerate(ODD_NAMES)}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("both") / "model.safetensors"
    safetensors.numpy.save_file(TENSORS, path, {"format": "np"})
    return str(path)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_all_tensors_are_the_same_whichever_call_returns_them(path, backend):
    check_same(lambda package: package.numpy.load_file(path, backend=backend))
    for framework in ("np", "numpy"):
        def opened(package):
            return package.safe_open(path, framework, backend=backend)
        for call in ("keys", "offset_keys", "metadata", "get_tensors"):
            check_same(lambda package: getattr(opened(package), call)(), call)
        for name in TENSORS:
            check_same(lambda package: opened(package).get_tensor(name), name)
            check_same(lambda package: opened(package).get_slice(name).get_shape(), name)
            check_same(lambda package: opened(package).get_slice(name).get_dtype(), name)
            check_same(lambda package: opened(package).get_slice(name)[...], name) if name != "none" else None


SLICES = ["0", "-1", "2", "0:1", "0:3", ":2", "1:", ":", "::2", "1::2", "0:3:2", "...", "..., 0", "0, ...", "0, ..., 1", "()", "0, 0, 0",
          "0, 1:3, ::3", ":, :, 4", ":, 0", "0:2, 1:2, 2:4", "-1, -1, -1", "..., :, 0", "numpy.int64(1)", "numpy.int64(0):2",
          # Both refuse these.
          "3", "-4", "0, 0, 0, 0", ":, :, :, :", "..., ...", "::-1", "::0", "0, ::-1", "None", "[0, 1]", "[True, False, True]", "1.5", "'a'",
          "0:4", ":100", "4:", "100:", "numpy.array([0])", ":, [0]", "range(2)", "1.5:", "'a':"]


@pytest.mark.parametrize("text", SLICES)
def test_slices_are_the_same(path, text):
    key = eval(f"Key()[{text}]", {"Key": type("Key", (), {"__getitem__": lambda self, key: key}), "numpy": np})
    check_same(lambda package: package.safe_open(path, "np").get_slice("m")[key], text)


@pytest.mark.parametrize("name, text, due", [
    # The reference raises OverflowError for a negative bound, SystemError or SafetensorError for a slice without elements, takes
    # True for 1, and sends an empty list back as all elements.
    ("m", "-2:", TENSORS["m"][-2:]), ("m", "-3:-1", TENSORS["m"][-3:-1]), ("m", "..., -1:", TENSORS["m"][..., -1:]),
    ("m", "1:0", TENSORS["m"][1:0]), ("m", "3:", TENSORS["m"][3:]), ("m", "1:1, 0", TENSORS["m"][1:1, 0]),
    ("none", ":", TENSORS["none"]), ("none", "..., 0", TENSORS["none"][..., 0]),
    ("m", "True", None), ("m", "[]", None), ("none", "0", None)])
def test_slices_follow_numpy_where_the_reference_fails(path, name, text, due):
    key = eval(f"Key()[{text}]", {"Key": type("Key", (), {"__getitem__": lambda self, key: key})})
    with stfs.safe_open(path, "np") as archive:
        if due is None:
            with pytest.raises(stfs.SafetensorError):
                archive.get_slice(name)[key]
            return
        got = archive.get_slice(name)[key]
    assert (got.dtype, got.shape, got.tobytes()) == (due.dtype, due.shape, due.tobytes())


def test_0_d_tensors_have_only_the_slices_that_they_have_there(path):
    for key in ((), ..., 0, slice(None)):
        check_same(lambda package: package.safe_open(path, "np").get_slice("zero")[key], repr(key))


def test_missing_names_and_wrong_arguments_raise_the_same(path):
    for name in ("nope", "M", 3, b"m", None):
        for call in ("get_tensor", "get_slice"):
            check_same(lambda package: getattr(package.safe_open(path, "np"), call)(name), f"{call}({name!r})")
    for framework in ("xx", "NP", "", 3, None, "tf", "mlx", "paddle"):
        ours = outcome(lambda: stfs.safe_open(path, framework))
        if framework in ("tf", "mlx", "paddle"):  # there: ModuleNotFoundError, if it is not installed
            assert isinstance(ours, stfs.SafetensorError)
        else:
            check_same(lambda package: package.safe_open(path, framework).keys(), repr(framework))
    for device in ("cpu", None, "cuda:0", "cuda", 0, "xx", "cpu:0", -1, 1.5, "mps", "meta", "disk", "auto", "", "cuda:", "cuda:x"):
        check_same(lambda package: package.safe_open(path, "np", device=device).get_tensor("v"), repr(device))
    for backend in ("x", "", None, 3):
        check_same(lambda package: package.safe_open(path, "np", backend=backend).keys(), repr(backend))
        check_same(lambda package: package.numpy.load_file(path, backend=backend), repr(backend))
    check_same(lambda package: package.safe_open(path))
    check_same(lambda package: package.safe_open(filename=path, framework="np", device="cpu").keys())
    check_same(lambda package: package.safe_open(path, "np", "cpu", "mmap"))


def test_a_closed_file_refuses_and_its_slices_stay(path):
    def closed(package):
        with package.safe_open(path, "np") as archive:
            part = archive.get_slice("v")
        return archive, part
    for call in ("keys", "offset_keys", "metadata", "get_tensors"):
        check_same(lambda package: getattr(closed(package)[0], call)(), call)
    check_same(lambda package: closed(package)[0].get_tensor("v"))
    check_same(lambda package: closed(package)[0].get_slice("v"))
    check_same(lambda package: closed(package)[1][2:4])
    check_same(lambda package: closed(package)[0].__exit__(None, None, None))


def test_paths_are_taken_and_refused_as_there(path, tmp_path, monkeypatch):
    monkeypatch.chdir(pathlib.Path(path).parent)
    for named in (path, pathlib.Path(path), "model.safetensors", os.fsencode(path), bytearray(b"x"), 3, None, "", "a\0b", str(tmp_path / "none"),
                  str(tmp_path)):
        check_same(lambda package: package.safe_open(named, "np").keys(), repr(named))
        check_same(lambda package: list(package.numpy.load_file(named)), repr(named))
    with pytest.raises(FileNotFoundError) as raised:
        stfs.numpy.load_file(tmp_path / "none")
    assert raised.value.errno == 2 and str(tmp_path / "none") in str(raised.value)
    with pytest.raises(NotADirectoryError):  # there: FileNotFoundError for each failure of open(2)
        stfs.numpy.load_file(path + "/x")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    check_same(lambda package: package.safe_open(tmp_path / "model.safetensors.index.json", "np").keys())
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(stfs.SafetensorError):
        stfs.safe_open(tmp_path / "fifo", "np")


def archive(header, data=b""):
    return len(header).to_bytes(8, "little") + header + data


GOOD = archive(b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', b"abcd")
BAD_FILES = {"empty": b"", "too small": GOOD[:7], "no header": GOOD[:8], "a cut header": GOOD[:30], "cut": GOOD[:-1], "long": GOOD + b"x",
             "not UTF-8": archive(b'{"\xff":{}}'), "no JSON": archive(b"hello"), "an array": archive(b"[]"), "huge": (1 << 40).to_bytes(8, "little") + b"{}",
             "text": b"<!DOCTYPE html><html>", "a gap": archive(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', b"ab"),
             "a wrong size": archive(b'{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}}', b"abcd"),
             "an unknown dtype": archive(b'{"a":{"dtype":"X8","shape":[4],"data_offsets":[0,4]}}', b"abcd")}
GOOD_FILES = {"good": GOOD, "no tensor": archive(b"{}"), "no metadata": archive(b'{"__metadata__":null}'), "spaces": archive(b"{}      "),
              "a filler's shape": archive(b'{"a":{"dtype":"U8","shape":[0,7],"data_offsets":[0,0]}}')}


@pytest.mark.parametrize("kind", [*BAD_FILES, *GOOD_FILES])
def test_files_that_are_no_archive_are_refused_as_there(tmp_path, kind):
    content = {**BAD_FILES, **GOOD_FILES}[kind]
    (tmp_path / "file").write_bytes(content)
    ours = check_same(lambda package: package.safe_open(tmp_path / "file", "np").metadata())
    assert isinstance(ours, stfs.FormatError) == (kind in BAD_FILES)
    check_same(lambda package: package.numpy.load_file(tmp_path / "file"))
    check_same(lambda package: package.numpy.load(content))


def test_archives_in_memory_are_read_as_there():
    content = safetensors.numpy.save({name: array for name, array in TENSORS.items() if name != "bf"})
    # The order there is random.
    check_same(lambda package: dict(sorted(package.numpy.load(content).items())))
    for wrong in ("text", 3, None, [1]):
        check_same(lambda package: package.numpy.load(wrong), repr(wrong))
    assert list(stfs.numpy.load(memoryview(GOOD))) == list(stfs.numpy.load(bytearray(GOOD))) == ["a"]  # there: TypeError
    with pytest.raises(stfs.FormatError, match="^the data: "):
        stfs.numpy.load(GOOD[:-1])
    descriptors = os.listdir("/proc/self/fd")
    kept = stfs.numpy.load(content)["m"]
    assert os.listdir("/proc/self/fd") == descriptors
    kept += 1  # its own memory
    assert (kept == TENSORS["m"] + 1).all()


def test_eight_bit_floats_have_their_types_which_the_reference_lacks(tmp_path):
    tensors = {dtype: np.array([1, 2]).astype(getattr(ml_dtypes, dtype)) for dtype in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")}
    stfs.numpy.save_file(tensors, tmp_path / "f8")
    got = stfs.numpy.load_file(tmp_path / "f8")
    assert {name: (array.dtype, array.tobytes()) for name, array in got.items()} == \
        {name: (array.dtype, array.tobytes()) for name, array in tensors.items()}


def test_elements_below_a_byte_are_refused_and_never_shown_as_bytes(tmp_path):
    (tmp_path / "f4").write_bytes(archive(b'{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}', b"ab"))
    with pytest.raises(stfs.SafetensorError, match="a: NumPy has no type for F4"):
        stfs.numpy.load_file(tmp_path / "f4")


def test_without_ml_dtypes_a_bfloat16_is_an_error_and_not_an_integer(path, monkeypatch):
    import sys
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with stfs.safe_open(path, "np") as archive:
        with pytest.raises(ModuleNotFoundError):
            archive.get_tensor("bf")


def test_arrays_are_copies_that_outlive_the_file(path, tmp_path):
    own = tmp_path / "own"
    own.write_bytes(pathlib.Path(path).read_bytes())
    arrays = stfs.numpy.load_file(own)
    os.truncate(own, 100)
    arrays["m"] += 1
    assert (arrays["m"] == TENSORS["m"] + 1).all()


def test_threads_read_one_file_at_the_same_time(path):
    results = []
    with stfs.safe_open(path, "np") as archive:
        def read():
            results.append(all(archive.get_tensor(name).tobytes() == array.tobytes() for name, array in TENSORS.items()))
        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [True] * 8


def test_a_forked_child_reads_the_file_of_its_parent(path):
    with stfs.safe_open(path, "np") as archive:
        child = os.fork()
        if child == 0:
            os._exit(0 if archive.get_tensor("m").tobytes() == TENSORS["m"].tobytes() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_top_level_functions_name_their_framework(path, tmp_path):
    assert stfs.load_file(path, framework="np")["m"].tobytes() == TENSORS["m"].tobytes()
    stfs.save_file({"m": TENSORS["m"]}, tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == safetensors.numpy.save({"m": TENSORS["m"]})
