# Extended attributes describe a tensor without a read of it. tests/fs/filesystem_attributes_test.cc tests the list of
# attributes, their values and their changes.
import ctypes
import errno
import os
import subprocess

import pytest
import xxhash
from archive_file import write_bytes_tensors, write_raw
from kernel_fuse import EmptyDirectory
from mounted import errno_of

pytestmark = pytest.mark.sequential

PREFIX = "user.safetensors."
libc = ctypes.CDLL(None, use_errno=True)


def test_attributes_agree_with_the_header(mount, archive):
    for name, (dtype, shape, begin, _) in archive.layout().items():
        assert mount.attribute(name, "name") == name
        assert mount.attribute(name, "dtype") == dtype
        assert mount.attribute(name, "shape") == str(shape).replace(" ", "")
        assert mount.attribute(name, "offset") == str(begin)
        assert mount.attribute(name, "archive") == os.path.abspath(archive.path)
        assert mount.attribute(name, "generation").isdigit()


def test_all_22_dtypes_are_spelled_as_in_the_header(tmp_path, mounts):
    bits = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
            "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
            "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}
    tensors = [(dtype, dtype, [4, 3], os.urandom(12 * size // 8)) for dtype, size in bits.items()]
    mount = mounts(write_raw(tmp_path / "all.safetensors", tensors))
    for name, dtype, _, data in tensors:
        assert mount.attribute(name, "dtype") == dtype
        assert mount.attribute(name, "shape") == "[4,3]"
        assert (mount / name).read_bytes() == data


def test_a_relative_source_gives_an_absolute_archive_attribute(archive, mounts):
    mount = mounts(os.path.relpath(archive.path))
    shown = mount.attribute("odd", "archive")
    assert os.path.isabs(shown) and os.path.samefile(shown, archive.path)


def test_the_checksum_is_what_xxh128sum_prints(mount, archive):
    for name in os.listdir(mount.path):
        due = xxhash.xxh3_128_hexdigest(archive.tensor(name))
        assert mount.attribute(name, "checksum") == f"xxh128:{due}", name


def test_root_attributes_describe_the_archive(mount, archive):
    elements = sum(_product(shape) for _, shape, _, _ in archive.layout().values())
    assert mount.attribute(None, "tensors") == str(len(archive.layout()))
    assert mount.attribute(None, "parameters") == str(elements)
    assert mount.attribute(None, "archive") == os.path.abspath(archive.path)
    assert mount.attribute(None, "metadata.format") == "pt"
    assert mount.attribute(None, "metadata.title") == "a sample"
    assert set(os.listxattr(mount.path)) == {PREFIX + name for name in (
        "tensors", "parameters", "archive", "generation", "first_generation", "metadata.format", "metadata.title")}


def _product(shape):
    result = 1
    for dimension in shape:
        result *= dimension
    return result


def test_awkward_metadata_is_shown_where_the_kernel_can_hold_it(tmp_path, mounts):
    metadata = {"": "empty key", "with.dot": "1", "empty value": "", "new\nline": "a\nb", "ключ": "значение",
                "k" * 400: "a key longer than an attribute's name may be", "nul\0key": "x",
                "large": "v" * 60000, "too large": "w" * 100000}
    mount = mounts(write_raw(tmp_path / "m.safetensors", [("t", "U8", [1], b"x")], metadata))
    listed = os.listxattr(mount.path)
    for key in ("with.dot", "empty value", "new\nline", "ключ", "large"):
        assert PREFIX + "metadata." + key in listed
        assert mount.attribute(None, "metadata." + key) == metadata[key]
    assert all(len(os.fsencode(name)) <= 255 for name in listed)
    assert PREFIX + "metadata.too large" not in listed
    with pytest.raises(OSError) as caught:
        mount.attribute(None, "metadata.too large")
    assert caught.value.errno == errno.E2BIG
    assert (mount / "t").read_bytes() == b"x"


def test_more_metadata_than_a_listing_can_hold_breaks_nothing(tmp_path, mounts):
    metadata = {f"key number {number}": str(number) for number in range(5000)}
    mount = mounts(write_raw(tmp_path / "m.safetensors", [("t", "U8", [1], b"x")], metadata))
    listed = os.listxattr(mount.path)
    assert 60_000 < sum(len(name) + 1 for name in listed) <= 65_536
    assert PREFIX + "tensors" in listed and PREFIX + "metadata.key number 0" in listed
    assert mount.attribute(None, "metadata.key number 4999") == "4999"
    assert os.listdir(mount.path) == ["t"]


def test_each_listed_attribute_can_be_read(tmp_path, mounts):
    names = ["n" * 65_536, "n" * 65_537]
    mount = mounts(write_bytes_tensors(tmp_path / "m.safetensors", {name: b"x" for name in names}))
    found = set()
    for file in os.listdir(mount.path):
        values = {name: os.getxattr(mount / file, name) for name in os.listxattr(mount / file)}
        assert values[PREFIX + "dtype"] == b"U8"
        found.add(len(values.get(PREFIX + "name", b"")))
    assert found == {65_536, 0}


@pytest.mark.parametrize("name", ["security.selinux", "security.capability", "security.ima", "user.other",
                                  "user.safetensors.nothing"])
def test_what_ls_and_write_ask_for_is_enodata(mount, name):
    for path in (mount / "odd", mount.path):
        assert errno_of(os.getxattr, path, name) == errno.ENODATA


@pytest.mark.parametrize("name", ["system.posix_acl_access", "system.posix_acl_default"])
def test_an_access_control_list_is_what_the_kernel_makes_of_enodata(mount, tmp_path, name):
    # The kernel may refuse attributes without asking the daemon, for example in a user namespace.
    with EmptyDirectory(tmp_path / "other") as other:
        due = errno_of(os.getxattr, other.path, name)
    for path in (mount / "odd", mount.path):
        assert errno_of(os.getxattr, path, name) == due


def test_a_buffer_that_is_too_small_is_erange_and_size_0_asks(mount):
    path, name = os.fsencode(mount / "odd"), b"user.safetensors.archive"
    due = len(os.getxattr(mount / "odd", name.decode()))
    assert libc.getxattr(path, name, None, 0) == due
    buffer = ctypes.create_string_buffer(due)
    assert libc.getxattr(path, name, buffer, due - 1) == -1
    assert ctypes.get_errno() == errno.ERANGE
    assert libc.getxattr(path, name, buffer, due) == due
    listed = libc.listxattr(path, None, 0)
    buffer = ctypes.create_string_buffer(listed)
    assert libc.listxattr(path, buffer, listed - 1) == -1
    assert ctypes.get_errno() == errno.ERANGE
    assert libc.listxattr(path, buffer, listed) == listed


@pytest.mark.parametrize("options, due", [("edit=off", errno.EPERM), ("ro", errno.EROFS)])
def test_attributes_cannot_be_set_or_removed(archive, mounts, options, due):
    mount, before = mounts(archive.path, options), archive.content()
    for path in (mount / "odd", mount.path):
        for name in ("user.safetensors.dtype", "user.comment"):
            assert errno_of(os.setxattr, path, name, b"x") == due
            assert errno_of(os.removexattr, path, name) == due
    assert archive.content() == before


def test_getfattr_dumps_a_tensor_and_the_root(mount):
    shown = subprocess.run(["getfattr", "--absolute-names", "-d", mount / "odd"], capture_output=True,
                           text=True)
    assert shown.returncode == 0 and shown.stderr == ""
    assert 'user.safetensors.dtype="U8"' in shown.stdout
    assert 'user.safetensors.shape="[12345]"' in shown.stdout
    assert "checksum" not in shown.stdout
    everything = subprocess.run(["getfattr", "-m", "-", "-d", mount.path], capture_output=True, text=True)
    assert everything.returncode == 0 and "metadata.format" in everything.stdout


def test_ls_l_is_quiet_and_shows_no_acl_mark(mount):
    shown = subprocess.run(["ls", "-l", mount.path], capture_output=True, text=True)
    assert shown.returncode == 0 and shown.stderr == ""
    assert "+" not in shown.stdout.split("\n")[1].split()[0]

