# Edits of a model from Python. The reference library reads the archive after each of them.
import errno
import gc
import os
import subprocess

import numpy as np
import pytest
from safetensors import safe_open

import stfs
from archive_file import random_array
from edited_model import check
from sharded_model import ShardedModel


def test_other_programs_find_no_filler_after_a_deletion(small):
    path, due = small
    with stfs.open(path, "r+") as model:
        del model["a"], due["a"]
        with safe_open(path, "np") as archive:
            assert sorted(archive.keys()) == sorted(due)
        check(path, due)


def test_each_kind_of_edit(small):
    path, due = small
    with stfs.open(path, "r+") as model:
        due["new"] = model["new"] = random_array("f8", (5, 1, 2), 4)
        check(path, due, {"title": "small"})
        due["b"] = random_array("u2", (9, 9), 5)
        model.replace("b", due["b"])
        check(path, due)
        assert (model["b"].dtype, model["b"].shape) == ("U16", (9, 9))
        del model["c"], due["c"]
        check(path, due)
        model.rename("a", "z")
        due["z"] = due.pop("a")
        check(path, due)
        model.rename({"z": "b", "b": "z"})
        due["z"], due["b"] = due["b"], due["z"]
        check(path, due)
        model.reinterpret("z", dtype="I16", shape=[81])
        due["z"] = due["z"].view("i2").reshape(81)
        check(path, due)
        model.reinterpret("z", shape=(3, 27))
        due["z"] = due["z"].reshape(3, 27)
        model.metadata["author"] = "me"
        del model.metadata["title"]
        check(path, due, {"author": "me"})
        assert model.metadata == {"author": "me"} and set(model) == set(due) and model.mode == "r+"


def test_the_same_dtype_and_shape_is_written_in_place(small):
    path, due = small
    with stfs.open(path, "r+") as model:
        tensor, size = model["a"], path.stat().st_size
        offset, shared = tensor.offset, tensor.numpy()
        due["a"] = model["a"] = random_array("f4", (30, 40), 9)
        assert model["a"].offset == offset and path.stat().st_size == size
        assert shared.tobytes() == due["a"].tobytes()
        check(path, due)


def test_another_dtype_or_shape_needs_replace(small):
    path, due = small
    before = path.read_bytes()
    with stfs.open(path, "r+") as model:
        for wrong in (due["a"].astype("f8"), due["a"].T, due["a"][:1], due["a"].reshape(-1)):
            with pytest.raises(ValueError, match=r"a: is F32 \[30, 40\], and the array is .*: replace\(\) gives"):
                model["a"] = wrong
        with pytest.raises(ValueError, match="replace"):
            model.put("a", due["a"].tobytes(), dtype="float16", shape=(60, 40))
        with pytest.raises(KeyError, match="wieght"):
            model.replace("wieght", due["a"])
        assert path.read_bytes() == before
        model.put("a", due["a"].tobytes(), dtype="float32", shape=(30, 40))  # the same form by another name
        model.replace("a", due["a"].astype("f8"))
        due["a"] = due["a"].astype("f8")
        check(path, due)
        with model.transaction():  # the state inside of the transaction decides
            model["new"] = np.zeros(3)
            with pytest.raises(ValueError, match="new: is F64"):
                model["new"] = np.zeros(4)
            model.rename({"new": "a", "a": "new"})
            with pytest.raises(ValueError, match="a: is F64"):
                model["a"] = np.zeros((30, 40))
            model["a"] = due["a"].reshape(-1)[:3]
            model.reinterpret("a", dtype="int64")
            model["a"] = np.arange(3)
            del model["c"]
            model["c"] = np.ones(2, "u1")
        due["new"], due["a"], due["c"] = due["a"], np.arange(3), np.ones(2, "u1")
        check(path, due)


def test_shards_and_their_index(tmp_path):
    sharded = ShardedModel(tmp_path / "sharded")
    names = sorted(sharded.tensors)
    with stfs.open(sharded.index, "r+") as model:
        old, gone = names[0], names[1]
        due = model[old].tobytes()
        model["new"] = np.arange(6, dtype="i4")
        with model.transaction():
            model.rename(old, "renamed")
            del model[gone]
            model.metadata["k"] = "v"
        assert model["renamed"].tobytes() == due and gone not in model
        with model.transaction():  # in place, in several shards
            changed = {name: bytes(reversed(model[name].tobytes())) for name in names[2:]}
            for name, content in changed.items():
                model.put(name, content, dtype=model[name].dtype, shape=model[name].shape)
    with stfs.open(sharded.directory, strict=True) as model:
        assert set(model) == set(names) - {old, gone} | {"new", "renamed"}
        assert model["renamed"].tobytes() == due and model.metadata["k"] == "v"
        assert all(model[name].tobytes() == content for name, content in changed.items())
        for name, tensor in model.items():
            with safe_open(tensor.archive, "np") as archive:
                assert name in archive.keys()


@pytest.mark.parametrize("make", [
    lambda array: array[::2, ::-3], lambda array: array.T, lambda array: np.asfortranarray(array),
    lambda array: array[3, 4], lambda array: np.float32(2.5), lambda array: array[:0], lambda array: array.astype(">f4"),
    lambda array: np.broadcast_to(array[0], (4, 40)), lambda array: array.astype("c8")[:, ::2], lambda array: array > 0.5])
def test_arrays_of_any_layout(small, make):
    path, due = small
    array = make(due["a"])
    with stfs.open(path, "r+") as model:
        model["new"] = array
    due["new"] = np.array(array, array.dtype.newbyteorder("="))
    check(path, due)


def test_objects_with_the_buffer_protocol_and_tensors(small):
    path, due = small
    with stfs.open(path, "r+") as model:
        model["bytes"] = b"hello"
        model["view"] = memoryview(np.arange(12, dtype="i2").reshape(3, 4))[::2]
        model["tensor"] = model["a"][::3, 1].copy()
        model.put("four", b"\x10\x32", dtype="F4", shape=(2, 2))
        assert (model["four"].dtype, model["four"].tobytes()) == ("F4", b"\x10\x32")
        del model["four"]
    due.update(bytes=np.frombuffer(b"hello", "u1"), view=np.arange(12, dtype="i2").reshape(3, 4)[::2], tensor=due["a"][::3, 1])
    check(path, due)


def test_types_that_numpy_lacks(small):
    path, _ = small
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(6, dtype="f4").reshape(2, 3).astype(ml_dtypes.bfloat16)
    with stfs.open(path, "r+") as model:
        model["bf16"] = array
        model["fp8"] = array.astype(ml_dtypes.float8_e4m3fn)[:, ::-1]
        assert (model["bf16"].dtype, model["fp8"].dtype) == ("BF16", "F8_E4M3")
        assert model["fp8"].tobytes() == array.astype(ml_dtypes.float8_e4m3fn)[:, ::-1].tobytes()
        # An array of unsigned integers can give the bits of a BF16 tensor.
        model["bf16"] = array[::-1].view("u2")
        assert model["bf16"].dtype == "BF16" and model["bf16"].tobytes() == array[::-1].tobytes()
        model.replace("bf16", array.view("u2")[0])
        assert (model["bf16"].dtype, model["bf16"].shape) == ("U16", (3,))


def test_torch_tensors(small, torch_python):
    path, _ = small
    code = """if True:
        import sys, torch, stfs
        with stfs.open(sys.argv[1], "r+") as model:
            weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
            model["weight"] = weight
            model["turned"] = weight.T
            model["bf16"] = weight.bfloat16()[:, ::2]
            model["scalar"] = torch.tensor(True)
            assert model["bf16"].dtype == "BF16" and model["scalar"].dtype == "BOOL" and model["scalar"].shape == ()
            for name, due in (("weight", weight), ("turned", weight.T), ("bf16", weight.bfloat16()[:, ::2])):
                assert torch.from_dlpack(model[name].copy()).equal(due), name
    """
    python, environment = torch_python
    done = subprocess.run([python, "-c", code, path], capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr


def test_arrays_of_before_keep_their_bytes(small):
    path, due = small
    with stfs.open(path, "r+") as model:
        model.metadata["k"] = "v"  # gives the header room
        old = model["a"].numpy()
        del model["a"]
        model["d"] = random_array("f4", (30, 40), 7)
        assert old.tobytes() == due["a"].tobytes() and "a" not in model
        size = path.stat().st_size
        del old
        gc.collect()
        # Now the space of "a" is used.
        model["e"] = due["a"]
        assert path.stat().st_size <= size
        due.update(d=random_array("f4", (30, 40), 7), e=due.pop("a"))
        check(path, due)


def test_a_tensor_that_is_held_keeps_a_tight_header_from_growing(small):
    path, due = small
    with stfs.open(path, "r+") as model:
        held = model["a"]
        with pytest.raises(OSError, match="this program itself still uses tensors") as caught:
            model["a name that is longer than what the header has left"] = np.zeros(3)
        assert caught.value.errno == errno.EBUSY
        check(path, due)
        model["b"] = due["b"][::-1]  # in place
        del held
        model["new"] = np.zeros(3)
        check(path, {**due, "b": due["b"][::-1], "new": np.zeros(3)})


def test_an_edit_of_another_program_is_kept(small):
    path, due = small
    with stfs.open(path, "r+") as one, stfs.open(path, "r+") as other:
        with pytest.raises(OSError) as caught:
            one["new"] = np.zeros(300)
        assert caught.value.errno == errno.EBUSY
        other.close()
        one["new"] = np.zeros(3)
    with stfs.open(path, "r+") as one, stfs.open(path, "r+") as other:
        one["one"] = np.ones(1)
        other["other"] = np.ones(2)
        one["b"] = due["b"] = due["b"][::-1]
        assert set(one) == set(due) | {"new", "one", "other"}
    check(path, {**due, "new": np.zeros(3), "one": np.ones(1), "other": np.ones(2)})


def test_what_is_wrong_is_told_and_changes_nothing(small):
    path, due = small
    before = path.read_bytes()
    with stfs.open(path, "r+") as model:
        for wrong in (lambda: model.__delitem__("none"), lambda: model.rename("none", "some"),
                      lambda: model.reinterpret("none", dtype="U8", shape=[1]), lambda: model.reinterpret("none", dtype="U8"),
                      lambda: model.metadata.__delitem__("none"), lambda: model.metadata.pop("none")):
            with pytest.raises(KeyError, match="none"):
                wrong()
        with pytest.raises(FileExistsError, match='"a" can\'t be named "b"'):
            model.rename("a", "b")
        with pytest.raises(OSError, match="needs 2 bytes") as caught:
            model.reinterpret("a", dtype="U16", shape=[1])
        assert caught.value.errno == errno.EINVAL
        with pytest.raises(OSError, match="needs 6 bytes, 5 came"):
            model.put("new", b"hello", shape=[6])
        for wrong in (lambda: model.metadata.__setitem__("k", "\udcff"), lambda: model.metadata.__setitem__("\udcff", "v"),
                      lambda: model.__setitem__("\udcff", b"x"), lambda: model.rename("a", "\udcff")):
            with pytest.raises(ValueError, match="is not UTF-8"):
                wrong()
        with pytest.raises(ValueError, match="reserved"):
            model["__safetensorsfs.free.0"] = b"x"
        with pytest.raises(ValueError, match="dtype float8"):
            model.put("new", b"x", dtype="float8")
        for wrong, why in (([1, 2], "is no array"), ("text", "is no array"), (np.array(["x"]), "no dtype"),
                           (np.zeros(2, "c16"), "no dtype"), (np.array([object()]), "no dtype")):
            with pytest.raises(TypeError, match=why):
                model["new"] = wrong
        for wrong in (lambda: model.metadata.__setitem__("k", 3), lambda: model.metadata.update(k="v"),
                      lambda: model.metadata.clear(), lambda: model.rename("a"), lambda: model.rename({"a": "b"}, "c"),
                      lambda: model.rename("a", 3), lambda: model.__setitem__(3, b"x")):
            with pytest.raises(TypeError):
                wrong()
        with model.transaction():
            with pytest.raises(RuntimeError, match="open already"):
                with model.transaction():
                    pass
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="closed"):
        model["new"] = b"x"
    with pytest.raises(ValueError, match="mode='w'"):
        stfs.open(path, "w")


def test_mode_r_changes_nothing(small):
    path, _ = small
    before = path.read_bytes()
    with stfs.open(path) as model:
        assert model.mode == "r"
        for wrong in (lambda: model.__setitem__("a", b"x"), lambda: model.__delitem__("a"), lambda: model.rename("a", "x"),
                      lambda: model.metadata.__setitem__("k", "v"), lambda: model.transaction().__enter__(),
                      lambda: model.reinterpret("a", shape=[1200])):
            with pytest.raises(OSError, match=r"open for reading only: open it with stfs.open\(path, 'r\+'\)") as caught:
                wrong()
            assert caught.value.errno == errno.EROFS
        model.metadata.copy()["k"] = "v"
    assert path.read_bytes() == before


def test_files_that_may_not_be_written(small, mounts):
    path, due = small
    mount = mounts(path, options="ro")
    with pytest.raises(OSError, match="read-only mount") as caught:
        stfs.open(mount.path, "r+")
    assert caught.value.errno == errno.EROFS
    if os.geteuid() != 0:
        path.chmod(0o444)
        with pytest.raises(PermissionError):
            stfs.open(path, "r+")


def test_through_a_mount(small, mounts):
    path, due = small
    mount = mounts(path)
    with stfs.open(mount.path, "r+") as model:
        due["a"] = model["a"] = random_array("f4", (30, 40), 9)
    with stfs.open(mount / "b", "r+") as model:
        due["b"] = model["b"] = due["b"][::-1]
        for wrong in (lambda: model.__setitem__("a", due["a"]), lambda: model.__delitem__("b")):
            with pytest.raises(ValueError, match="file"):
                wrong()
    check(path, due)


def test_nothing_is_left_of_edits(small):
    path, due = small
    files = len(os.listdir("/proc/self/fd"))
    with stfs.open(path, "r+") as model:
        for turn in range(20):
            (model.replace if turn else model.put)("new", np.full(turn + 1, turn))
        assert len(os.listdir("/proc/self/fd")) <= files + 3
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files and os.listdir(path.parent) == [path.name]
