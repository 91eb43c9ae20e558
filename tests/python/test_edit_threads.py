# Threads that use a model while another one edits it.
import threading

import numpy as np

import stfs
from edited_model import check, stored


def test_other_threads_use_the_model_meanwhile(small):
    path, due = small
    failures, is_over = [], threading.Event()
    with stfs.open(path, "r+") as model:
        model["kept"] = np.arange(10)

        def read():
            try:
                while not is_over.is_set():
                    names = list(model)
                    assert "kept" in names and model["kept"].tobytes() == np.arange(10).tobytes()
                    assert model.metadata["title"] == "small" and len(model) > 3 and model.generation
            except BaseException as error:
                failures.append(error)

        def write(name):
            try:
                for turn in range(15):
                    model[name] = np.full(50 + turn % 2, turn)
                    with model.transaction():
                        model.rename(name, name + "x")
                    del model[name + "x"]
            except BaseException as error:
                failures.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        writers = [threading.Thread(target=write, args=(f"t{at}",)) for at in range(2)]
        for thread in readers + writers:
            thread.start()
        for thread in writers:
            thread.join()
        is_over.set()
        for thread in readers:
            thread.join()
    assert not failures
    check(path, {**due, "kept": np.arange(10)})


def test_calls_of_other_threads_do_not_keep_a_tight_header_from_growing(small):
    path, due = small
    fresh = path.read_bytes()
    for turn in range(10):
        path.write_bytes(fresh)
        is_over = threading.Event()
        with stfs.open(path, "r+") as model:
            def read():
                while not is_over.is_set():
                    model.generation, list(model), model.metadata

            threads = [threading.Thread(target=read) for _ in range(3)]
            for thread in threads:
                thread.start()
            try:
                model[f"a name that is longer than what the header has left {turn}"] = np.zeros(turn)
            finally:
                is_over.set()
                for thread in threads:
                    thread.join()
        assert len(stored(path)[0]) == len(due) + 1
