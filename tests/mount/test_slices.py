# `.safetensors/slice/`: random slices through a real mount against NumPy, and names that are no slices.
import errno
import json
import os
import random

import numpy as np
import pytest

import archive_file
import mounted

pytestmark = pytest.mark.sequential

SLICES = 200


@pytest.fixture
def arrays(tmp_path, mounts):
    """Tensors of ranks 0 to 6 and several sizes of element, mounted."""
    numbers = np.random.default_rng(11)
    made, tensors = {}, []
    for rank in range(7):
        for dtype, kind in (("U8", "u1"), ("F16", "f2"), ("F32", "f4"), ("I64", "i8")):
            shape = [int(size) for size in numbers.integers(1, 40 if rank < 4 else 7, rank)]
            array = np.frombuffer(numbers.bytes(int(np.prod(shape, dtype=int)) * int(kind[1])), kind).reshape(shape)
            made[f"r{rank}.{dtype}"] = array
            tensors.append((f"r{rank}.{dtype}", dtype, shape, array.tobytes()))
    large = numbers.integers(0, 1 << 30, (700, 1300), np.int32)
    made["large"] = large
    tensors.append(("large", "I32", list(large.shape), large.tobytes()))
    path = archive_file.write_raw(tmp_path / "slices.safetensors", tensors)
    mount = mounts(path)
    mount.source_path = path
    return mount, made


def random_index(choices, shape):
    """The text of a slice and the index that NumPy understands it as."""
    texts, index = [], []
    for size in shape[:choices.randint(0, len(shape))]:
        if choices.random() < 0.3:
            at = choices.randrange(-size, size)
            texts.append(str(at))
            index.append(at)
            continue
        bounds = [choices.choice([None, choices.randint(-size - 2, size + 2)]) for _ in range(2)]
        step = choices.choice([None, 1, 2, 3, -1, -2, size + 1])
        bound = ":".join("" if value is None else str(value) for value in bounds)
        texts.append(bound + ("" if step is None else f":{step}"))
        index.append(slice(*bounds, step))
    if choices.random() < 0.2 or not texts:
        at = choices.randint(0, len(texts))
        # An ellipsis with fewer dimensions after it than are named would mean others.
        at = len(texts) if len(texts) < len(shape) else at
        texts.insert(at, "...")
        index.insert(at, Ellipsis)
    return ",".join(texts), tuple(index)


def test_random_slices_are_numpys(arrays):
    mount, made = arrays
    choices = random.Random(int(os.environ.get("STFS_SEED", "4")))
    for number in range(SLICES):
        name = choices.choice(list(made))
        text, index = random_index(choices, made[name].shape)
        want = made[name][index]
        path = mount / ".safetensors" / "slice" / f"{name}[{text}]"
        assert path.stat().st_size == want.nbytes, (name, text)
        assert path.read_bytes() == want.tobytes(), (name, text)
        if number % 4 == 0:
            found = np.load(f"{path}.npy", mmap_mode="r" if want.nbytes else None)
            assert found.shape == want.shape and found.dtype == want.dtype
            np.testing.assert_array_equal(np.asarray(found).view("u1") if found.shape else found.tobytes(),
                                          want.copy().view("u1") if want.shape else want.tobytes())
            del found


def test_a_slice_says_what_it_is(arrays):
    mount, _ = arrays
    path = mount / ".safetensors" / "slice" / "large[0:10,3]"
    assert os.getxattr(path, "user.safetensors.shape").decode() == "[10]"
    assert os.getxattr(path, "user.safetensors.dtype").decode() == "I32"
    assert os.getxattr(path, "user.safetensors.name").decode() == "large"


@pytest.mark.parametrize("name, wanted", [
    ("large[700,0]", errno.EINVAL), ("large[" + "9" * 200 + "]", errno.EINVAL), ("nobody[0]", errno.ENOENT)])
def test_what_is_no_slice(arrays, name, wanted):
    """Each kind: tests/fs/views_test.cc."""
    mount, _ = arrays
    with pytest.raises(OSError) as refused:
        os.stat(mount / ".safetensors" / "slice" / name)
    assert refused.value.errno == wanted


def resident_bytes(mount):
    with open(f"/proc/{mount.process.pid}/smaps_rollup") as smaps:
        return next(int(line.split()[1]) << 10 for line in smaps if line.startswith("Anonymous:"))


def test_lookups_leave_nothing_behind(arrays):
    mount, _ = arrays
    directory = mount / ".safetensors" / "slice"
    count = 1_000_000 if os.environ.get("STFS_LONG") else 20_000

    def are_forgotten():
        return 1 <= json.loads((mount / ".safetensors" / "stats.json").read_text())["open_slices"] <= 1100

    with open(directory / "large[0]", "rb"):
        for first in (0, count):
            before = resident_bytes(mount)
            for number in range(first, first + count):
                for name in (f"large[{number % 700},{number // 700 % 1300}:]", f"nobody{number}[0]"):
                    try:
                        os.stat(directory / name)
                    except FileNotFoundError:
                        pass
                # A separate thread asks the kernel to forget the names; on a busy machine that can take a while.
                if number % 2_000 == 1_999:
                    assert mounted.eventually(are_forgotten)
        # Sanitizers keep what was freed.
        if not mounted.is_sanitized():
            assert resident_bytes(mount) - before < 4 << 20  # malloc has an arena for each thread
