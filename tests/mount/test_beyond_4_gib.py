# Places that no 32 bits can name: a sparse archive with a tensor of 6 GiB, read and patched beyond each power of two
# that a number might be cut at, plainly and through each view.
import json
import os
import struct

import numpy as np
import pytest

pytestmark = pytest.mark.sequential

ROWS, COLUMNS = 6, 1 << 29  # of BF16: each row is a GiB
ROW_BYTES = 2 * COLUMNS
BIG_BYTES = ROWS * ROW_BYTES
# Places in the tensor: around 2 and 4 GiB, in the middle of the last row, at both ends. Each mark is a different BF16 number.
PLACES = [0, (2 << 30) - 4, 1 << 31, (4 << 30) - 2, 4 << 30, (4 << 30) + 8, (5 << 30) + 12346, BIG_BYTES - 2]
MARKS = {place: struct.pack("<H", 0x3f81 + number) for number, place in enumerate(PLACES)}


def float32_of(mark):
    return b"\0\0" + mark


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    path = tmp_path_factory.mktemp("sparse") / "sparse.safetensors"
    header = json.dumps({"first": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
                         "big": {"dtype": "BF16", "shape": [ROWS, COLUMNS], "data_offsets": [3, 3 + BIG_BYTES]},
                         "last": {"dtype": "U8", "shape": [5], "data_offsets": [3 + BIG_BYTES, 8 + BIG_BYTES]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + b"abc")
        begin = file.tell()
        file.truncate(begin + BIG_BYTES + 5)
        for place, mark in MARKS.items():
            os.pwrite(file.fileno(), mark, begin + place)
        os.pwrite(file.fileno(), b"12345", begin + BIG_BYTES)
    yield path, begin
    path.unlink()


@pytest.fixture
def mount(sparse, mounts):
    path, begin = sparse
    made = mounts(path)
    made.begin = begin
    return made


def bytes_at(path, offset, size_bytes):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, size_bytes, offset)
    finally:
        os.close(fd)


def test_each_place_of_the_tensor_has_its_bytes(mount):
    assert os.stat(mount / "big").st_size == BIG_BYTES
    for place, mark in MARKS.items():
        assert bytes_at(mount / "big", place, 2) == mark, place
    assert (mount / "last").read_bytes() == b"12345"


def test_each_place_of_the_archive_view_has_its_bytes(mount):
    view = mount / ".safetensors" / "archive.safetensors"
    header_bytes = struct.unpack("<Q", bytes_at(view, 0, 8))[0]
    begins = {name: entry["data_offsets"][0] for name, entry in json.loads(bytes_at(view, 8, header_bytes)).items()}
    for place, mark in MARKS.items():
        assert bytes_at(view, 8 + header_bytes + begins["big"] + place, 2) == mark, place
    assert bytes_at(view, 8 + header_bytes + begins["last"], 5) == b"12345"


def test_each_place_of_the_npy_view_has_its_bytes(mount):
    array = np.load(mount / ".safetensors" / "npy" / "big.npy", mmap_mode="r")
    assert array.shape == (ROWS, COLUMNS)
    for place, mark in MARKS.items():
        row, column = divmod(place // 2, COLUMNS)
        assert array[row, column].tobytes() == mark, place


def test_each_place_of_the_float32_view_has_its_value(mount):
    view = mount / ".safetensors" / "float32" / "big.npy"
    header_bytes = os.stat(view).st_size - 2 * BIG_BYTES
    for place, mark in MARKS.items():
        assert bytes_at(view, header_bytes + 2 * place, 4) == float32_of(mark), place


def indices(selection):
    """Those that the parts of a selection choose, of rows and of columns."""
    parts = selection.split(",") + [":"]
    return [range(size)[slice(*(int(each) if each else None for each in part.split(":")))] if ":" in part
            else [int(part)] for size, part in zip((ROWS, COLUMNS), parts)]


@pytest.mark.parametrize("selection", ["5", "4:", "5,6170:6180", "1::2,-8:", "5:,6173::1048576"])
def test_slices_have_the_bytes_of_each_place(mount, selection):
    rows, columns = indices(selection)
    view = mount / ".safetensors" / "slice" / f"big[{selection}]"
    assert os.stat(view).st_size == 2 * len(rows) * len(columns)
    seen = 0
    for place, mark in MARKS.items():
        row, column = divmod(place // 2, COLUMNS)
        if row not in rows or column not in columns:
            continue
        at = rows.index(row) * len(columns) + columns.index(column)
        assert bytes_at(view, 2 * at, 2) == mark, place
        seen += place >= 1 << 32
    assert seen > 0, "the selection holds no mark beyond 4 GiB"


def test_patches_beyond_4_gib_land_where_they_belong(mount, sparse):
    path, begin = sparse
    for number, place in enumerate((PLACES[3] - 5000, PLACES[4] + 100_000, PLACES[6] + 1)):
        data = bytes([65 + number]) * 9001
        before = bytes_at(path, begin + place - 4096, 4096 + len(data) + 4096)
        fd = os.open(mount / "big", os.O_RDWR)
        try:
            assert os.pwrite(fd, data, place) == len(data)
        finally:
            os.close(fd)
        assert bytes_at(path, begin + place - 4096, len(before)) == before[:4096] + data + before[-4096:], place
        assert place < 1 << 32 or bytes_at(path, begin + (place & 0xffffffff), 2) != data[:2], place
        with open(path, "r+b") as file:  # as the next test wants it
            file.seek(begin + place - 4096)
            file.write(before)
