# Writes to `.safetensors/pretrained/`: a mount with a delta makes private copies beside the delta, every other writable mount
# changes the files of the source. test_pretrained.py tests read-only mounts.
import errno
import json
import mmap
import os
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest
from access_list import let_user
from mounted import PATIENCE, errno_of, eventually, shell
from safetensors.numpy import save_file
from test_planted_files import MALLORY

CONFIG = b'{"model_type": "sample"}'


@pytest.fixture
def source(archive_path, tmp_path):
    source = tmp_path / "source"
    (source / "1_Pooling").mkdir(parents=True)
    os.rename(archive_path, source / "model.safetensors")
    (source / "config.json").write_bytes(CONFIG)
    (source / "1_Pooling" / "config.json").write_text('{"pooling": 1}')
    return source


@pytest.fixture
def delta(tmp_path):
    return tmp_path / "run.safetensors"


@pytest.fixture(params=["source", "delta"])
def written(request, source, delta, mounts):
    """(pretrained, the directory that changes go to), of a mount without and of one with a delta."""
    options = f"delta={delta}" if request.param == "delta" else ""
    path = mounts(source / "model.safetensors", options).path / ".safetensors" / "pretrained"
    return path, source if request.param == "source" else delta.with_name(delta.name + ".pretrained")


def files_of(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def save_tokenizer(path):
    """What a tokenizer's save_pretrained() does."""
    os.makedirs(path, exist_ok=True)
    for name in ("tokenizer_config.json", "special_tokens_map.json", "tokenizer.json"):
        with open(path / name, "w", encoding="utf-8") as file:
            file.write(json.dumps({"name": name}, indent=2) + "\n")
    os.makedirs(path / "additional_chat_templates", exist_ok=True)
    (path / "additional_chat_templates" / "tool.jinja").write_text("{{ tool }}")


def test_files_are_made_changed_moved_and_removed(written):
    path, own = written
    (path / "config.json").write_bytes(b"{}")
    assert (path / "config.json").read_bytes() == (own / "config.json").read_bytes() == b"{}"
    with open(path / "1_Pooling/config.json", "r+b") as file:
        file.seek(2)
        file.write(b"P")
        file.flush()
        os.fsync(file.fileno())
    assert (own / "1_Pooling/config.json").read_bytes() == b'{"Pooling": 1}'
    with open(path / "config.json", "ab") as file:
        file.write(b"\n")
    assert (own / "config.json").read_bytes() == b"{}\n"
    save_tokenizer(path)
    assert (own / "additional_chat_templates/tool.jinja").read_text() == "{{ tool }}"
    with open(path / "config.json.tmp", "wb") as file:
        file.write(b"[]")
    os.replace(path / "config.json.tmp", path / "config.json")
    assert (path / "config.json").read_bytes() == (own / "config.json").read_bytes() == b"[]"
    os.unlink(path / "tokenizer.json")
    assert "tokenizer.json" not in os.listdir(path) and not (own / "tokenizer.json").exists()
    shutil.rmtree(path / "additional_chat_templates")
    assert not (own / "additional_chat_templates").exists()
    os.truncate(path / "special_tokens_map.json", 1)
    assert (own / "special_tokens_map.json").read_bytes() == b"{"
    assert errno_of(open, path / "config.json", "x") == errno.EEXIST
    assert errno_of(os.rmdir, path / "1_Pooling") in (errno.ENOTEMPTY, errno.EPERM)


def test_an_adapter_is_no_checkpoint(written, tmp_path):
    pretrained, _ = written
    save_file({"lora": np.ones(3, "f4")}, tmp_path / "adapter")
    adapter = (tmp_path / "adapter").read_bytes()
    before = os.listdir(pretrained)
    assert errno_of((pretrained / "adapter_model.safetensors").write_bytes, adapter) == errno.EPERM
    (pretrained / ".tmp1").write_bytes(adapter)
    assert errno_of(os.rename, pretrained / ".tmp1", pretrained / "adapter_model.safetensors") == errno.EPERM
    os.unlink(pretrained / ".tmp1")
    assert os.listdir(pretrained) == before
    log = (pretrained.parent / "log").read_text()
    assert "archives, their indexes" in log and "is no name of the model" in log


def test_programs_copy_and_edit(written):
    path, own = written
    done = shell('cd "$1" && cp config.json copy.json && sed -i s/sample/other/ copy.json && cp -p copy.json second.json && '
                 'echo x >> second.json && dd if=copy.json of=third.json bs=5 status=none && mv third.json 1_Pooling/', path)
    assert done.returncode == 0 and done.stderr == ""
    assert (own / "copy.json").read_bytes() == CONFIG.replace(b"sample", b"other")
    assert (own / "second.json").read_bytes() == (own / "copy.json").read_bytes() + b"x\n"
    assert (own / "1_Pooling/third.json").read_bytes() == (own / "copy.json").read_bytes()


def test_mappings_read_and_write(written):
    path, own = written
    with open(path / "config.json", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[:] == CONFIG
    with open(path / "config.json", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[2:12] = b"MODEL_TYPE"
        mapped.flush()
    assert (own / "config.json").read_bytes() == (path / "config.json").read_bytes() == CONFIG.replace(b"model_type", b"MODEL_TYPE")


def test_a_delta_leaves_the_source_alone(source, delta, mounts):
    before = files_of(source)
    modes = {name: (source / name).stat() for name in before}
    mount = mounts(source / "model.safetensors", f"delta={delta}")
    path = mount.path / ".safetensors/pretrained"
    (path / "config.json").write_bytes(b"changed")
    os.unlink(path / "1_Pooling/config.json")
    save_tokenizer(path)
    os.rename(path / "config.json", path / "renamed.json")
    shown = files_of(path)
    assert shown["renamed.json"] == b"changed" and "config.json" not in shown and "1_Pooling/config.json" not in shown
    assert files_of(source) == before and {name: (source / name).stat() for name in before} == modes
    mount.unmount()
    for options in (f"delta={delta}", f"ro,delta={delta}"):  # the files belong to the delta
        again = mounts(source / "model.safetensors", options)
        assert files_of(again.path / ".safetensors/pretrained") == shown
        again.unmount()
    assert files_of(mounts(source / "model.safetensors", "ro").path / ".safetensors/pretrained").keys() == before.keys()


def test_a_private_directory_goes_with_its_last_file(source, delta, mounts):
    path = mounts(source / "model.safetensors", f"delta={delta}").path / ".safetensors/pretrained"
    private = delta.with_name(delta.name + ".pretrained")
    assert not private.exists()
    (path / "new.json").write_text("x")
    assert private.is_dir()
    os.unlink(path / "new.json")
    assert not private.exists()


def test_deltas_on_deltas_have_layers(source, delta, mounts, tmp_path):
    first = mounts(source / "model.safetensors", f"delta={delta}")
    (first.path / ".safetensors/pretrained/config.json").write_text("first")
    os.unlink(first.path / ".safetensors/pretrained/1_Pooling/config.json")
    first.unmount()
    top = tmp_path / "top.safetensors"
    path = mounts(source / "model.safetensors", f"delta={delta},delta={top}").path / ".safetensors/pretrained"
    assert (path / "config.json").read_text() == "first" and not (path / "1_Pooling/config.json").exists()
    (path / "config.json").write_text("second")
    os.makedirs(path / "1_Pooling", exist_ok=True)
    (path / "1_Pooling/config.json").write_text("made again")
    assert (delta.with_name(delta.name + ".pretrained") / "config.json").read_text() == "first"
    assert (path / "config.json").read_text() == "second" and (path / "1_Pooling/config.json").read_text() == "made again"


def test_a_link_of_a_hub_cache_is_replaced_by_a_copy(source, mounts, tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/1").write_bytes(CONFIG)
    os.unlink(source / "config.json")
    os.symlink("../blobs/1", source / "config.json")
    path = mounts(source / "model.safetensors").path / ".safetensors/pretrained"
    assert (path / "config.json").read_bytes() == CONFIG
    (path / "config.json").write_bytes(b"{}")
    assert (path / "config.json").read_bytes() == (source / "config.json").read_bytes() == b"{}"
    assert not (source / "config.json").is_symlink() and (tmp_path / "blobs/1").read_bytes() == CONFIG


def test_a_change_of_the_source_is_seen_by_open_files(source, mounts):
    path = mounts(source / "model.safetensors").path / ".safetensors/pretrained"
    (source / "log").write_bytes(b"a" * 5000)
    with open(path / "log", "rb", buffering=0) as file:
        assert file.read() == b"a" * 5000
        with open(source / "log", "r+b") as other:
            other.write(b"b" * 6000)
        os.fstat(file.fileno())
        assert os.pread(file.fileno(), 7000, 0) == b"b" * 6000
        (source / "new").write_bytes(b"new")
        os.rename(source / "new", source / "log")
        assert os.pread(file.fileno(), 7000, 0) == b"b" * 6000  # the file of before
        assert (path / "log").read_bytes() == b"new"


@pytest.mark.needs_root
def test_others_get_what_the_source_allows(source, delta, mounts, nobody):
    os.chmod(source, 0o755)
    secret, shared = source / "secret.json", source / "shared.json"
    secret.write_text("secret")
    shared.write_text("shared")
    os.chmod(source / "model.safetensors", 0o644)
    os.chmod(secret, 0o600)
    os.chmod(shared, 0o664)
    os.symlink("/etc/shadow", source / "shadow")
    os.lchown(source / "shadow", nobody.uid, nobody.gid)
    for number, options in enumerate(("allow_other", "allow_other,ro", f"allow_other,delta={delta}")):
        mount_point = nobody.directory / f"mnt{number}"
        mount_point.mkdir()
        mount = mounts(source / "model.safetensors", options, path=mount_point)
        path = mount.path / ".safetensors/pretrained"

        def may(script):
            return shell(" ".join(nobody.before) + f" sh -c '{script}' sh \"$1\"", path).returncode == 0
        assert may('cat "$1/shared.json"') and not may('cat "$1/secret.json"')
        assert not may('echo x > "$1/shared.json"') and not may('echo x > "$1/new.json"') and not may('rm "$1/shared.json"')
        assert not may('cat "$1/shadow"') and "shadow" not in os.listdir(path)
        if "ro" not in options:
            (path / "secret.json").write_text("changed")
            (path / "shared.json").write_text("changed")
            assert not may('cat "$1/secret.json"') and may('cat "$1/shared.json"')
            private = delta.with_name(delta.name + ".pretrained")
            changed = private if private.exists() else source
            assert stat.S_IMODE((changed / "secret.json").stat().st_mode) == 0o600
        mount.unmount()


def test_a_default_list_opens_no_copy_of_a_private_file(source, delta, mounts):
    (source / "config.json").chmod(0o640)
    let_user(MALLORY, 0o7, delta.parent, group=0o7, kind="default")
    path = mounts(source / "model.safetensors", f"delta={delta}").path / ".safetensors/pretrained"
    (path / "config.json").write_text("changed")
    private = delta.with_name(delta.name + ".pretrained")
    for copy in (private, private / "config.json"):
        assert "system.posix_acl_access" not in os.listxattr(copy), copy
    assert stat.S_IMODE((private / "config.json").stat().st_mode) == 0o640


@pytest.mark.needs_root
def test_a_private_directory_of_another_user_is_refused(source, delta, mounts, nobody):
    private = delta.with_name(delta.name + ".pretrained")
    private.mkdir()
    (private / "config.json").write_text("planted")
    os.chown(private, nobody.uid, nobody.gid)
    path = mounts(source / "model.safetensors", f"delta={delta}").path / ".safetensors/pretrained"
    assert errno_of(open, path / "config.json") == errno.EPERM
    assert errno_of(open, path / "config.json", "w") == errno.EPERM
    assert os.listdir(path) == ["model.safetensors"]
    shutil.rmtree(private)
    os.symlink(source, private)  # nothing is written through a link
    assert errno_of(open, path / "config.json", "w") in (errno.ELOOP, errno.ENOTDIR)
    os.unlink(private)
    assert eventually(lambda: (path / "config.json").read_bytes() == CONFIG)


TRUNCATION = """
import mmap, os, sys
shown, real = sys.argv[1:]
file = os.open(shown, os.O_RDWR)
pages = mmap.mmap(file, 8192)
pages[0] = 65
with open(real, "r+b") as other:
    other.seek(9000)
    other.write(b"other")
pages[1] = 66
os.ftruncate(file, 12288)
pages.flush()
assert os.pread(file, 5, 9000) == b"other"
"""


def test_a_truncation_of_a_file_that_another_program_changes_ends(source, mounts):
    # The kernel sends no written page before the truncation is answered, so the answer must not wait for a page.
    (source / "notes.txt").write_bytes(bytes(16384))
    mount = mounts(source / "model.safetensors")
    shown = mount / ".safetensors/pretrained/notes.txt"
    program = subprocess.Popen([sys.executable, "-c", TRUNCATION, shown, source / "notes.txt"])
    try:
        assert program.wait(60 * PATIENCE) == 0
    except subprocess.TimeoutExpired:
        subprocess.run(["umount", "-f", mount.path])  # no signal ends the program
        program.wait()
        raise
    data = (source / "notes.txt").read_bytes()
    assert len(data) == 12288 and data[:2] == b"AB" and data[9000:9005] == b"other"
