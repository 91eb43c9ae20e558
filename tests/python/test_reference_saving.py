# save_file() and create() write what the reference library writes, and a file is old or whole.
import errno
import os
import pathlib
import signal
import stat
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import stfs
import stfs.numpy
from both_libraries import check_same, outcome
from test_reference_reading import ODD_NAMES, TENSORS

ONE = {"a": np.arange(6, dtype="f4").reshape(2, 3)}
SETS = {"all": TENSORS, "none": {}, "one": ONE, "empty": {"a": np.zeros((0, 3), "f4"), "b": np.zeros((), "f4")},
        "sorted by dtype": {name: np.zeros(3, dtype) for name, dtype in zip("hgfedcba", ("u1", "f8", "i2", "f4", "b1", "i8", "c8", "f2"))},
        "big-endian": {"a": np.arange(5, dtype=">i4"), "b": np.array(1.5, ">f8")},
        "bfloat16": {"a": np.arange(5).astype(ml_dtypes.bfloat16), "b": np.ones(3, ml_dtypes.float8_e4m3fn), "c": np.ones(3, "i1")},
        "Fortran's order of one column": {"a": np.asfortranarray(np.zeros((3, 1)))}, "many": {f"layers.{at}": np.full(at, at, "i2") for at in range(300)}}
METADATA = [None, {}, {"format": "pt"}, {"": ""}, {"key": "\u2028 / \\ \" \n \x01 \x7f é \U0001f9e0"}]


@pytest.mark.parametrize("metadata", METADATA, ids=repr)
@pytest.mark.parametrize("kind", SETS)
def test_files_are_equal_byte_for_byte(tmp_path, kind, metadata):
    if kind == "none" and metadata == {}:  # The reference saves a file that no library reads.
        assert stfs.numpy.save({}, {}) == (24).to_bytes(8, "little") + b'{"__metadata__":{}}     '
        return
    saved = check_same(lambda package: package.numpy.save(SETS[kind], metadata))
    assert isinstance(saved, bytes)
    assert check_same(lambda package: package.numpy.save_file(SETS[kind], tmp_path / package.__name__, metadata)) is None
    assert (tmp_path / "stfs").read_bytes() == (tmp_path / "safetensors").read_bytes() == saved


def test_several_keys_of_metadata_stand_in_the_order_of_the_dict(tmp_path):
    # The reference writes them in another order each time.
    metadata = {key: key for key in "zyxabc"}
    saved = stfs.numpy.save(ONE, metadata)
    assert saved[8:].startswith(b'{"__metadata__":{"z":"z","y":"y","x":"x","a":"a","b":"b","c":"c"},')
    theirs = safetensors.numpy.save(ONE, metadata)
    assert len(theirs) == len(saved) and sorted(theirs) == sorted(saved)


@pytest.mark.parametrize("array", [ONE["a"].T, ONE["a"][:, ::2], ONE["a"][::-1]], ids=["transposed", "strided", "reversed"])
def test_arrays_that_are_not_contiguous_are_saved_as_they_look(array):
    # The reference saves the first bytes of the memory, which are other elements.
    assert stfs.numpy.load(stfs.numpy.save({"a": array}))["a"].tolist() == array.tolist()
    assert safetensors.numpy.load(stfs.numpy.save({"a": array}))["a"].tolist() == array.tolist()


def test_what_no_archive_can_have_is_refused_as_there():
    for array in (np.array([object()]), np.zeros(2, "c16"), np.array(["x"]), np.zeros(2, "M8[s]"), np.zeros(2, "f16")):
        check_same(lambda package: package.numpy.save({"a": array}), array.dtype)
    for name in (1, b"a", None, ("a",), "\ud800"):
        check_same(lambda package: package.numpy.save({name: ONE["a"]}), repr(name))
    for metadata in ({"a": 1}, {1: "a"}, [1], "text", {"a": None}, {"a": "\ud800"}):
        check_same(lambda package: package.numpy.save(ONE, metadata), repr(metadata))
    for name in ("__metadata__", "__safetensorsfs.free.1"):  # there: a file that no library reads, or a tensor that ours hides
        with pytest.raises(stfs.SafetensorError, match=name):
            stfs.numpy.save({name: ONE["a"]})
    for wrong in ([1, 2], "text", 3.5):  # there: AttributeError
        with pytest.raises(TypeError):
            stfs.numpy.save({"a": wrong})
    with pytest.raises(TypeError):
        stfs.numpy.save([ONE["a"]])


def test_arguments_have_the_names_that_they_have_there(tmp_path):
    check_same(lambda package: package.numpy.save_file(tensor_dict=ONE, filename=tmp_path / "a", metadata={"a": "b"}))
    check_same(lambda package: package.numpy.save_file(tensors=ONE, filename=tmp_path / "a"))
    check_same(lambda package: package.numpy.load_file(filename=tmp_path / "a"))
    check_same(lambda package: package.numpy.save(tensor_dict=ONE, metadata=None))


def seen(path):
    """Whether a path is a link, the mode of its file, and its inode if it had a file before."""
    status = os.lstat(path)
    return stat.filemode(status.st_mode), status.st_nlink, status.st_size


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("before", ["nothing", "a file of mode 644", "a file of mode 600", "a link", "a dangling link", "a hard link"])
def test_the_file_has_the_mode_that_it_has_there_and_replaces_what_it_replaces_there(tmp_path, before, mask):
    def save(package):
        directory = tmp_path / package.__name__
        directory.mkdir()
        path, other = directory / "a", directory / "other"
        if before.startswith("a file"):
            path.touch()
            path.chmod(int(before[-3:], 8))
        if before in ("a link", "a hard link"):
            other.write_bytes(b"other")
            path.symlink_to(other) if before == "a link" else path.hardlink_to(other)
        if before == "a dangling link":
            path.symlink_to(other)
        package.numpy.save_file(ONE, path)
        return {name: seen(directory / name) for name in sorted(os.listdir(directory))}
    old = os.umask(mask)
    try:
        made = check_same(save)
    finally:
        os.umask(old)
    assert made["a"][0] == "-rw-------"


def test_another_mode_is_given_by_an_argument(tmp_path):
    old = os.umask(0o022)
    try:
        stfs.numpy.save_file(ONE, tmp_path / "a", mode=0o664)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == 0o644
    for mode in (0, -1, 0o4644):
        with pytest.raises(ValueError):
            stfs.numpy.save_file(ONE, tmp_path / "b", mode=mode)
    assert os.listdir(tmp_path) == ["a"]


def test_failures_of_the_file_system_are_both_a_safetensor_error_and_an_os_error(tmp_path):
    (tmp_path / "file").touch()
    for named, code in ((tmp_path, errno.EISDIR), (tmp_path / "none" / "a", errno.ENOENT), (tmp_path / "file" / "a", errno.ENOTDIR),
                        ("", errno.ENOENT), ("a\0b", None)):
        ours = check_same(lambda package: package.numpy.save_file(ONE, named), repr(named))
        assert isinstance(ours, stfs.SaveError) and isinstance(ours, OSError) and code in (ours.errno, None)
    for named in (os.fsencode(tmp_path / "a"), 3, None):
        check_same(lambda package: package.numpy.save_file(ONE, named), repr(named))
    assert os.listdir(tmp_path) == ["file"]


def test_special_files_are_never_replaced(tmp_path):
    # The reference replaces /dev/null by an archive, if the user may.
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(stfs.SaveError):
        stfs.numpy.save_file(ONE, tmp_path / "fifo")
    assert stat.S_ISFIFO(os.stat(tmp_path / "fifo").st_mode) and os.listdir(tmp_path) == ["fifo"]


BIG = {"a": np.zeros(32 << 20, "u1")}


def test_progress_ends_a_save_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    stfs.numpy.save_file(ONE, path)
    before = path.read_bytes()
    calls = []

    def stop(done_bytes, total_bytes):
        calls.append((done_bytes, total_bytes))
        raise OSError(99, "mine")

    with pytest.raises(OSError, match="mine") as raised:
        stfs.numpy.save_file(BIG, path, progress=stop)
    assert not isinstance(raised.value, stfs.SaveError) and len(calls) == 1
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a"]
    calls.clear()
    stfs.numpy.save_file(BIG, path, progress=lambda *numbers: calls.append(numbers), durability="process")
    assert calls[0][0] == 0 and calls[-1] == (path.stat().st_size,) * 2 and calls == sorted(calls)
    with pytest.raises(ValueError):
        stfs.numpy.save_file(ONE, path, durability="none")
    with pytest.raises(TypeError):
        stfs.numpy.save_file(ONE, path, progress=3)


def test_ctrl_c_ends_a_save_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    stfs.numpy.save_file(ONE, path)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        # The signal comes inside of the call, and its handler runs at the next look.
        stfs.numpy.save_file(BIG, path, progress=lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a"]


def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "a"
    program = ("import os, sys, numpy, stfs.numpy\n"
               "def die(done_bytes, total_bytes):\n"
               "    if done_bytes >= int(sys.argv[2]): os.kill(os.getpid(), 9)\n"
               "stfs.numpy.save_file({'a': numpy.ones(32 << 20, 'u1')}, sys.argv[1], progress=die)\n")
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(stfs.__file__).parents[1])}
    stfs.numpy.save_file(ONE, path)
    for moment in (0, 1, 32 << 20):
        done = subprocess.run([sys.executable, "-c", program, path, str(moment)], env=environment, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert list(stfs.numpy.load_file(path)) == ["a"] and stfs.numpy.load_file(path)["a"].shape == (2, 3)
    # A killed program cannot remove its temporary file, whose name no program takes for an archive.
    assert all(name == "a" or name.startswith(".stfs-") and name.endswith(".tmp") for name in os.listdir(tmp_path))


def test_a_full_disk_leaves_the_old_file(tmp_path):
    import resource
    path = tmp_path / "a"
    stfs.numpy.save_file(ONE, path)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        failure = outcome(lambda: stfs.numpy.save_file(BIG, path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert isinstance(failure, stfs.SaveError) and failure.errno == errno.EFBIG
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a"]


def test_a_file_is_saved_over_the_file_that_its_tensors_come_from(tmp_path):
    path = tmp_path / "a"
    stfs.numpy.save_file(TENSORS, path)
    with stfs.open(path) as model:
        stfs.save_file(dict(model), path, {"k": "v"})  # the tensors are the old file's pages
    assert stfs.numpy.load_file(path)["m"].tobytes() == TENSORS["m"].tobytes()
    assert path.read_bytes() == safetensors.numpy.save(TENSORS, {"k": "v"})


def test_a_new_archive_is_filled_by_a_transaction(tmp_path):
    path = tmp_path / "new.safetensors"
    with stfs.create(path, metadata={"title": "new"}) as model:
        assert len(model) == 0 and model.metadata == {"title": "new"} and model.mode == "r+"
        with pytest.raises(RuntimeError), model.transaction():
            model["lost"] = ONE["a"]
            raise RuntimeError
        with model.transaction():
            for name in ODD_NAMES:
                model[name] = TENSORS[name]
            model["a"] = ONE["a"]
        assert len(model) == len(ODD_NAMES) + 1
    theirs = safetensors.numpy.load_file(path)
    assert theirs["a"].tobytes() == ONE["a"].tobytes() and set(theirs) == {"a", *ODD_NAMES}
    with pytest.raises(FileExistsError):
        stfs.create(path)
    with pytest.raises(FileNotFoundError):
        stfs.create(tmp_path / "none" / "a")
    with pytest.raises(TypeError):
        stfs.create(tmp_path / "b", metadata={"a": 1})
    assert os.listdir(tmp_path) == ["new.safetensors"]
