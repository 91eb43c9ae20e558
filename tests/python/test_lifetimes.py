# Memory lives as long as anything needs it and no longer; models are closed while threads use them.
import gc
import os
import threading
import weakref

import numpy as np
import pytest

import stfs
from archive_file import random_array, save_with_reference

OPENS = 10_000


def open_files():
    return len(os.listdir("/proc/self/fd"))


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def maps_of(path):
    with open("/proc/self/maps") as maps:
        return sum(1 for line in maps if str(path) in line)


def test_arrays_outlive_their_tensor_their_model_and_their_file(archive_path, tensors):
    with stfs.open(archive_path) as model:
        tensor = model["embed"]
        kept = [np.from_dlpack(model["layers.0.weight"]), np.asarray(model["layers.0.weight"]),
                np.asarray(memoryview(model["layers.0.weight"]))[3:], model["layers.0.weight"][::2, 1].numpy()]
    assert model.closed
    del model
    archive_path.unlink()
    gc.collect()
    due = tensors["layers.0.weight"]
    for array, expected in zip(kept, (due, due, due[3:], due[::2, 1])):
        assert array.tobytes() == expected.tobytes()
    assert tensor.tobytes() == bytes(tensor) == tensors["embed"].tobytes() == tensor[:].tobytes()
    assert maps_of(archive_path) == 2
    del kept, array, tensor
    gc.collect()
    assert maps_of(archive_path) == 0


def test_nothing_refers_to_what_is_dropped(archive_path):
    files = open_files()
    model = stfs.open(archive_path)
    tensor = model["odd"]
    dead = [weakref.ref(model), weakref.ref(tensor), weakref.ref(tensor[::2])]
    assert [reference() is not None for reference in dead] == [True, True, False]
    assert open_files() > files
    del model
    assert dead[0]() is None and tensor.tobytes()
    del tensor
    assert dead[1]() is None and open_files() == files and maps_of(archive_path) == 0


def test_context_managers(archive_path):
    files = open_files()
    with stfs.open(archive_path) as model:
        assert not model.closed
    assert model.closed and open_files() == files
    model.close()
    with pytest.raises(RuntimeError, match="of the body"):
        with stfs.open(archive_path) as model:
            raise RuntimeError("of the body")
    assert model.closed
    assert repr(model).endswith(", closed>")
    for use in (lambda: model["odd"], lambda: "odd" in model, lambda: len(model), lambda: list(model),
                lambda: model.metadata, lambda: model.path, lambda: model.generation, model.check_current):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_ten_thousand_opens_leave_nothing(tmp_path):
    path = save_with_reference(tmp_path / "m.safetensors", {"a": random_array("f4", (64, 64), 1),
                                                            "b": random_array("u1", (9,), 2)})

    def once():
        with stfs.open(path) as model:
            tensor = model["a"]
            np.from_dlpack(tensor[::2])
            memoryview(tensor)
            tensor.copy()
            tensor.__dlpack__()
            assert len(model.metadata) == 2
            with pytest.raises(KeyError):
                model["c"]
            with pytest.raises(ValueError):
                tensor.slice("nonsense")

    for _ in range(OPENS // 10):
        once()
    gc.collect()
    files, resident = open_files(), resident_bytes()
    for _ in range(OPENS):
        once()
    gc.collect()
    assert open_files() == files and maps_of(path) == 0
    # A leak of 200 bytes a turn fails this test.
    assert resident_bytes() - resident < 2_000_000


def test_failed_opens_leave_nothing(tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")

    def once():
        with pytest.raises(stfs.FormatError):
            stfs.open(tmp_path / "bad.safetensors")
        with pytest.raises(FileNotFoundError):
            stfs.open(tmp_path / "none")

    for _ in range(200):
        once()
    files, resident = open_files(), resident_bytes()
    for _ in range(3000):
        once()
    assert open_files() == files and resident_bytes() - resident < 1_000_000


def test_threads_share_a_model(archive_path, tensors):
    wrong = []

    def work(model, seed):
        names = sorted(tensors)
        try:
            for turn in range(150):
                name = names[(seed * 7 + turn) % len(names)]
                tensor = model[name]
                if not tensor.tobytes() == bytes(tensor) == tensor.copy().tobytes() == tensors[name].tobytes():
                    wrong.append(name)
        except Exception as error:  # shown below
            wrong.append(repr(error))

    for io in ("auto", "pread"):
        with stfs.open(archive_path, io=io) as model:
            threads = [threading.Thread(target=work, args=(model, seed)) for seed in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not wrong


def test_a_model_may_be_closed_while_threads_use_it(archive_path, tensors):
    unexpected = []

    def work(model, started):
        started.set()
        while True:
            try:
                if model["odd"].tobytes() != tensors["odd"].tobytes():
                    unexpected.append("wrong bytes")
                model.generation
                model.check_current()
            except ValueError as error:
                if "closed" not in str(error):
                    unexpected.append(repr(error))
                return
            except Exception as error:
                unexpected.append(repr(error))
                return

    for _ in range(30):
        model = stfs.open(archive_path)
        started = [threading.Event() for _ in range(4)]
        threads = [threading.Thread(target=work, args=(model, event)) for event in started]
        for thread in threads:
            thread.start()
        for event in started:
            event.wait()
        model.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert not unexpected
