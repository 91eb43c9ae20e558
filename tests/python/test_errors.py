# Each failure is the exception that a Python programmer expects, with the file and the reason in its words.
import errno
import os
import struct

import numpy as np
import pytest

import stfs
from archive_file import random_array, save_with_reference, write_raw


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.safetensors"):
        stfs.open(tmp_path / "none.safetensors")
    with pytest.raises(IsADirectoryError):
        stfs.open(tmp_path)
    with pytest.raises(ValueError, match="io='fast'"):
        stfs.open(tmp_path, io="fast")
    with pytest.raises(TypeError):
        stfs.open(3)
    with pytest.raises(ValueError, match="null byte"):
        stfs.open("a\0b")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="not a regular file"):
        stfs.open(tmp_path / "fifo")


@pytest.mark.parametrize("content, code", [
    (b"", "HeaderTooSmall"), (struct.pack("<Q", 1 << 40), "HeaderTooLarge"), (struct.pack("<Q", 9) + b"{}", "InvalidHeaderLength"),
    (struct.pack("<Q", 2) + b"[]", "InvalidHeader"),
    (struct.pack("<Q", 60) + b'{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}'.ljust(60) + b"short", "MetadataIncompleteBuffer")])
def test_files_that_are_no_archive(tmp_path, content, code):
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(stfs.FormatError, match=rf"bad\.safetensors: .*\({code}") as caught:
        stfs.open(tmp_path / "bad.safetensors")
    assert isinstance(caught.value, ValueError)


def test_tensors_that_are_not_there(model):
    with pytest.raises(KeyError, match="did you mean layers.0.weight"):
        model["layer.0.weight"]
    for wrong in (0, None, b"odd", ("odd",)):
        with pytest.raises(KeyError):
            model[wrong]
    with pytest.raises(TypeError, match="come from a model"):
        stfs.Tensor()


def test_a_shape_that_no_signed_number_holds_is_refused(tmp_path):
    """Beside a 0, an extent may be of any size."""
    fits = {"U8": [0, 2**63 - 1], "F32": [2**30, 0, 2**30], "F4": [0, 2**62]}
    wrong = [("U8", [0, 2**64 - 1]), ("U8", [0, 2**63]), ("F32", [0, 2**62]), ("U8", [0, 2**40, 2**40]), ("F4", [0, 2**63])]
    path = write_raw(tmp_path / "m.safetensors", [*((dtype, dtype, shape, b"") for dtype, shape in fits.items()),
                                                  *((f"wrong{at}", *form, b"") for at, form in enumerate(wrong))])
    with stfs.open(path) as model:
        for dtype, shape in fits.items():
            assert list(model[dtype].shape) == shape and min(model[dtype].strides or [1]) >= 0
            assert bytes(model[dtype]) == b""
        for at in range(len(wrong)):
            with pytest.raises(ValueError, match=f"'wrong{at}': its shape has no elements, and is too large"):
                model[f"wrong{at}"]


@pytest.mark.parametrize("io", ["auto", "pread"])
def test_an_archive_that_is_cut_gives_eio_and_no_signal(tmp_path, io):
    path = save_with_reference(tmp_path / "m.safetensors", {"a": random_array("f4", (1000,), 1),
                                                            "b": random_array("f4", (100_000,), 2)})
    model = stfs.open(path, io=io)
    first, last = model["a"], model["b"]
    os.truncate(path, last.offset + 5000)
    for use in (last.tobytes, last.copy, last[::3].tobytes, lambda: last.read_into(bytearray(last.nbytes)),
                lambda: memoryview(last), lambda: np.from_dlpack(last), lambda: np.asarray(last.copy()),
                lambda: last.__dlpack__(), lambda: last.address, model.check_current):
        with pytest.raises(OSError) as caught:
            use()
        assert caught.value.errno == errno.EIO, caught.value
    part = bytearray(4096)
    assert last.read_into(part) == 4096 and part == random_array("f4", (100_000,), 2).tobytes()[:4096]
    assert first.tobytes() == random_array("f4", (1000,), 1).tobytes() == bytes(first)


def test_an_archive_that_is_replaced_is_noticed_and_lives_on(archive_path, tensors):
    with stfs.open(archive_path) as model:
        before = model.generation
        model.check_current()
        save_with_reference(archive_path.with_suffix(".new"), {"other": random_array("u1", (5,), 1)})
        os.replace(archive_path.with_suffix(".new"), archive_path)
        with pytest.raises(OSError, match="another file") as caught:
            model.check_current()
        assert caught.value.errno == errno.ESTALE
        assert model.generation == before
        assert model["odd"].tobytes() == tensors["odd"].tobytes()
        archive_path.unlink()
        with pytest.raises(OSError, match="was deleted"):
            model.check_current()


HOSTILE = "a\x1b[31m\x9b\u202e\nb"


def indexed(path, index):
    with stfs.safe_open(path, framework="np") as file:
        return file.get_slice(HOSTILE)[index]


def overwritten(path, value):
    with stfs.open(path, "r+") as model:
        model[HOSTILE] = value


FAILURES = {
    "a type that NumPy lacks": lambda path: stfs.load_file(path.with_name("f4.safetensors"), framework="np"),
    "a slice behind the end": lambda path: indexed(path, slice(0, 99)),
    "a negative step": lambda path: indexed(path, slice(None, None, -1)),
    "a step of 0": lambda path: indexed(path, slice(None, None, 0)),
    "another shape": lambda path: overwritten(path, np.zeros(9, "u1")),
    "a tensor that is not there": lambda path: stfs.open(path)[HOSTILE + "c"],
    "a saved value that is no array": lambda path: stfs.numpy.save_file({HOSTILE: 3}, path.with_name("new")),
    "a directory": lambda path: stfs.safe_open(path.parent, framework="np"),
    "an archive that is not there": lambda path: stfs.open(path.parent / "none.safetensors"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_no_character_of_a_name_or_a_path_disturbs_a_terminal(tmp_path, failure):
    import stfs.numpy  # noqa: F401

    directory = tmp_path / HOSTILE
    directory.mkdir()
    path = write_raw(directory / "m.safetensors", [(HOSTILE, "U8", [8], b"12345678")])
    write_raw(directory / "f4.safetensors", [(HOSTILE, "F4", [2], b"1")])
    with pytest.raises(Exception) as caught:
        FAILURES[failure](path)
    assert str(caught.value).isprintable(), repr(caught.value)
