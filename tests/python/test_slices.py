# Slices select what NumPy's basic indexing selects, share the memory, and can be sliced again.
import random

import numpy as np
import pytest

import stfs
from archive_file import write_raw

ROUNDS = 400


def random_items(choices, shape):
    items = []
    for size in shape[:choices.randint(0, len(shape))]:
        kind = choices.random()
        if kind < 0.25 and size > 0:
            items.append(choices.randrange(-size, size))
        else:
            bound = lambda: choices.choice([None, choices.randint(-size - 2, size + 2)])  # noqa: E731
            items.append(slice(bound(), bound(), choices.choice([None, 1, 2, 3, -1, -2, -5])))
    if len(items) < len(shape) and choices.random() < 0.3:
        items.insert(choices.randint(0, len(items)), Ellipsis)
        # Items behind the ellipsis index the last dimensions, so these items do not fit there.
        at = items.index(Ellipsis)
        if at < len(items) - 1:
            del items[at + 1:]
    return tuple(items)


@pytest.mark.parametrize("io", ["auto", "pread"])
def test_random_slices_are_numpys(tmp_path, io):
    choices, numbers = random.Random(5), np.random.default_rng(5)
    arrays, raw = {}, []
    for rank in range(5):
        for dtype, kind in (("U8", "u1"), ("F16", "u2"), ("I32", "i4"), ("F64", "u8")):
            shape = [int(size) for size in numbers.integers(1, 9, rank)]
            name = f"r{rank}.{dtype}"
            arrays[name] = np.frombuffer(numbers.bytes(int(np.prod(shape, dtype=int)) * int(kind[1])), kind).reshape(shape)
            raw.append((name, dtype, shape, arrays[name].tobytes()))
    path = write_raw(tmp_path / "slices.safetensors", raw)
    empty = again = 0
    with stfs.open(path, io=io) as model:
        for _ in range(ROUNDS):
            name = choices.choice(list(arrays))
            due, got = arrays[name], model[name]
            for depth in range(choices.choice([1, 1, 2, 3])):
                items = random_items(choices, due.shape)
                due, got = due[items], got[items]
                again += depth > 0
                assert got.shape == due.shape, (name, items)
                assert got.tobytes() == due.tobytes(), (name, items)
                array = np.asarray(memoryview(got))
                assert array.shape == due.shape and array.tobytes() == due.tobytes(), (name, items)
                # NumPy copies a single element into a number, which has another address.
                if isinstance(due, np.ndarray) and due.size and io == "auto":
                    assert got.is_mapped
                    strides = [stride for stride, size in zip(due.strides, due.shape) if size > 1]
                    assert [stride for stride, size in zip(got.strides, got.shape) if size > 1] == strides
                    assert got.address - model[name].address == due.__array_interface__["data"][0] - arrays[
                        name].__array_interface__["data"][0]
                    if array.flags.aligned:
                        assert np.from_dlpack(got).ctypes.data == got.address
                assert got.offset >= model[name].offset
                empty += due.size == 0
    assert empty > ROUNDS / 50 and again > ROUNDS / 10, "all of one kind tries too little"


def test_examples(model, tensors):
    weight, due = model["layers.0.weight"], tensors["layers.0.weight"]
    for text, array in {"0:10, :, ": due[0:10], "..., 3": due[..., 3], "-1": due[-1], "::-1, ::7": due[::-1, ::7]}.items():
        assert weight.slice(text).tobytes() == array.tobytes()
    assert weight[()].shape == weight[...].shape == weight[:].shape == (256, 301)
    assert weight[np.int64(3), 4].shape == ()
    assert len(weight) == 256 and len(list(weight)) == 256
    assert sum(1 for row, other in zip(weight, due) if row.tobytes() == other.tobytes()) == 256
    assert repr(weight[0:10, ::2]) == "<stfs.Tensor 'layers.0.weight' F32 [10, 151]>"


@pytest.mark.parametrize("key, error", [
    (256, IndexError), (-257, IndexError), ((0, 0, 0), IndexError), ((Ellipsis, Ellipsis), IndexError),
    (slice(0, 1, 0), IndexError), ("a", TypeError), (1.0, TypeError), (None, TypeError), (True, TypeError),
    ([0], TypeError), (slice("a"), TypeError), (slice(0.5), TypeError)])
def test_what_is_no_slice_is_refused(model, key, error):
    with pytest.raises(error):
        model["layers.0.weight"][key]


@pytest.mark.parametrize("text", ["", "a", "1.0", "0;1", "256", "::0", "None"])
def test_a_bad_text_is_refused_with_its_place(model, text):
    with pytest.raises(ValueError, match=r"layers\.0\.weight\[.*\]: byte"):
        model["layers.0.weight"].slice(text)


def test_a_scalar_has_no_length(model):
    with pytest.raises(TypeError):
        len(model["scalar"])
