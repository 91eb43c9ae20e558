# Mounts of deltas whose base is a copy, another one, or slow to compare.
import json
import os
import shutil
import signal
import subprocess

import archive_file
import mounted
import pytest
from delta_variants import delta_of, digest_of, has_attributes, single, slow, stfs, tuned, variants, write_later  # noqa: F401
from mounted import eventually


# ---- another base ----

def test_a_copy_of_the_base_is_compared_once(variants, mounts, tmp_path):
    copies = tmp_path / "copies"
    copies.mkdir()
    for file in variants.files:
        shutil.copyfile(file, copies / file.name)
    if len(variants.files) > 1:
        shutil.copyfile(variants.base, copies / variants.base.name)
    variants.base = copies / variants.base.name
    first = variants.mount(mounts, "tuned")
    variants.check(first, "tuned")
    assert " was last changed at " in first.log() and f" MB of {variants.base} with what the delta was made for" in first.log()
    if not has_attributes(variants.deltas["tuned"]):
        return
    assert f"{variants.deltas['tuned']}: fits {variants.base}, which is remembered" in first.log()
    second = variants.mount(mounts, "tuned")
    variants.check(second, "tuned")
    assert "comparing" not in second.log()


def test_shards_may_be_joined_and_an_archive_split(variants, mounts, tmp_path):
    if len(variants.files) > 1:
        stfs("repack", variants.base, tmp_path / "joined.safetensors")
        variants.base = tmp_path / "joined.safetensors"
    else:
        stfs("repack", "--shard-size", "500K", variants.base, tmp_path / "split.safetensors.index.json")
        variants.base = tmp_path / "split.safetensors.index.json"
    mount = variants.mount(mounts, "quantized")
    assert "the base has " in mount.log()
    variants.check(mount, "quantized")


def test_a_changed_base_is_refused_by_its_name(variants, mounts):
    file = next(file for file in variants.files if "embed" in archive_file.ArchiveFile(file).layout())
    write_later(file, archive_file.ArchiveFile(file).layout()["embed"][2], b"other")
    for _ in range(2):
        with pytest.raises(mounted.MountFailed) as refused:
            variants.mount(mounts, "tuned")
        assert refused.value.status == 1
        assert f"{variants.base}: is not the base of {variants.deltas['tuned']}: the bytes of some tensors" in refused.value.log
        assert f"{file}: was last changed at " in refused.value.log
    # The base may have any bytes in tensors that the delta contains or removes.
    layout = {name: place[2:] for path in variants.files for name, place in archive_file.ArchiveFile(path).layout().items()}
    write_later(file, archive_file.ArchiveFile(file).layout()["embed"][2], variants.tensors["embed"].tobytes()[:5])
    assert layout and variants.mount(mounts, "tuned").attribute(None, "delta") == str(variants.deltas["tuned"])


def test_what_makes_no_variant_is_refused(single, mounts, tmp_path):
    def why(source, deltas):
        with pytest.raises(mounted.MountFailed) as refused:
            mounts(source, options=f"delta={deltas}")
        return refused.value.log

    delta = single.deltas["tuned"]
    assert f"{single.base}: not usable as a delta: it is the same file as {single.base}" in why(single.base, single.base)
    os.symlink(single.base, tmp_path / "link.safetensors")
    assert "it is the same file as" in why(single.base, tmp_path / "link.safetensors")
    assert "it is the same file as" in why(single.base, f"{delta}:{delta}")
    assert "was made for another base" in why(single.base, f"{delta}:{single.deltas['quantized']}")
    assert "its metadata has no key safetensorsfs.delta" in why(single.base, shutil.copy(single.base, tmp_path / "copy.safetensors"))
    assert "is a directory of archives: a delta needs one model" in why(single.directory, delta)
    assert "No such file" in why(single.base, f"{tmp_path / 'absent.safetensors'},ro")
    assert "No such file" in why(single.base, f"{tmp_path / 'absent.safetensors'}:{delta}")
    assert "No such file" in why(single.base, tmp_path / "absent" / "delta.safetensors")
    assert not (tmp_path / "absent.safetensors").exists()
    assert "delta must be the path of a delta" in why(single.base, "")


def test_ctrl_c_ends_a_comparison(slow, tmp_path):
    delta = delta_of(tmp_path / "d.safetensors", slow, **{".base_tensors": digest_of(tmp_path, slow)})
    point = tmp_path / "mnt"
    point.mkdir()
    known = delta.read_bytes(), sorted(os.listdir(tmp_path)), os.stat(slow).st_mtime_ns
    with open(tmp_path.parent / f"{tmp_path.name}.log", "w+") as log:
        process = subprocess.Popen([mounted.BINARY, "-f", "-o", f"delta={delta}", slow, point], stderr=log, stdout=log)
        try:
            assert eventually(lambda: f"comparing 68719.5 MB of {slow}" in open(log.name).read()), open(log.name).read()
            process.send_signal(signal.SIGINT)
            assert process.wait(10 * mounted.PATIENCE) == -signal.SIGINT
        finally:
            process.kill()
            process.wait()
            mounted.unmount_by_force(point)
    assert mounted.mount_entry(point) is None
    assert (delta.read_bytes(), sorted(os.listdir(tmp_path)), os.stat(slow).st_mtime_ns) == known


def test_an_unmount_ends_a_comparison(slow, tmp_path, mounts):
    stat = os.stat(slow)
    files = json.dumps([[slow.name, stat.st_size, stat.st_mtime_ns]])
    delta = delta_of(tmp_path / "d.safetensors", slow, **{
        "": "2", ".base_tensors": digest_of(tmp_path, slow), ".base_files": files})
    mount = mounts(slow, options=f"delta={delta}")
    assert (mount / "small").read_bytes() == b"1234"
    os.utime(slow)
    assert eventually(lambda: "comparing 68719.5 MB" in mount.log())
    assert (mount / "small").read_bytes() == b"1234"
    assert mount.unmount() == 0
    assert "its tensors give EIO" not in mount.log()
