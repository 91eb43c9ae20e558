# Several programs edit one model concurrently: two mounts, and `stfs`. Each operation of each program is done, and a tensor
# that no other program changes never gives ESTALE.
import os
import subprocess
import threading

import numpy as np
import pytest
from edited_mount import STFS, content, save, stfs, u8
from mounted import PATIENCE, eventually
from sharded_model import ShardedModel

pytestmark = [pytest.mark.once, pytest.mark.timeout(300 * PATIENCE)]

ROUNDS = int(os.environ.get("STFS_ROUNDS_BESIDE", 6))
KINDS = ["single", "sharded", "delta"]


class Shared:
    """One model for several programs. What a mount edits has the mount's own names."""

    def __init__(self, kind, tmp_path):
        self.options = ""
        sizes = {f"{who}.{at}": 4096 + at for who in "abc" for at in range(4)}
        self.due = save(tmp_path / "m.safetensors", sizes)
        self.source = self.target = tmp_path / "m.safetensors"
        if kind == "sharded":
            arrays = {name: np.frombuffer(data, "u1") for name, (_, _, data) in self.due.items()}
            self.source = self.target = ShardedModel(tmp_path / "sharded", tensors=arrays).index
        if kind == "delta":
            self.target = tmp_path / "d.safetensors"
            self.options = f"delta={self.target}"
        else:  # room in the headers: nothing moves while two have it open
            (tmp_path / "raw").write_bytes(b"raw")
            stfs("set", self.target, "--metadata", "room=made")
            stfs("put", "--create", "--dtype", "U8", self.target, "room", tmp_path / "raw")
            stfs("rm", self.target, "room")


class Editor(threading.Thread):
    """Runs steps that edit the tensors of `who`, and notes each failure."""

    def __init__(self, who, due):
        super().__init__(daemon=True)
        self.who, self.failures, self.done = who, [], 0
        self.due = {name: value for name, value in due.items() if name.startswith(who)}

    def attempt(self, what, action, *words):
        try:
            action(*words)
            self.done += 1
            return True
        except (OSError, subprocess.CalledProcessError) as error:
            self.failures.append((what, *map(str, words[-2:]), str(error)[:200], getattr(error, "stderr", "")))
            return False

    def run(self):
        for at in range(ROUNDS):
            self.round(at)


class MountEditor(Editor):
    def __init__(self, who, due, mount):
        super().__init__(who, due)
        self.mount = mount

    def npy(self, name, data):
        np.save(self.mount / ".safetensors" / "npy" / f"{name}.npy", np.frombuffer(data, "u1"))

    def write(self, name, data):
        (self.mount / name).write_bytes(data)

    def transaction(self, name, data):
        views = self.mount / ".safetensors"
        (views / "transactions" / self.who).mkdir()
        (views / "transactions" / self.who / name).write_bytes(data)
        os.rename(views / "transactions" / self.who, views / "committed" / self.who)

    def round(self, at):
        own = [f"{self.who}.{number}" for number in range(4)]
        data = bytes([at % 251]) * len(self.due[own[0]][2])
        if self.attempt("write", self.write, own[0], data):
            self.due[own[0]] = (self.due[own[0]][0], self.due[own[0]][1], data)
        new, other = f"{self.who}.new", f"{self.who}.other"
        if self.attempt("create", self.npy, new, b"n" * (100 + at)):
            self.due[new] = u8(b"n" * (100 + at))
        if new in self.due and self.attempt("rename", os.rename, self.mount / new, self.mount / other):
            self.due[other] = self.due.pop(new)
        kind = "I8" if at % 2 == 0 else "U8"
        if self.attempt("retype", os.setxattr, self.mount / own[1], "user.safetensors.dtype", kind.encode()):
            self.due[own[1]] = (kind, *self.due[own[1]][1:])
        if other in self.due and self.attempt("remove", os.unlink, self.mount / other):
            del self.due[other]
        data = bytes([at % 250]) * len(self.due[own[2]][2])
        if self.attempt("transaction", self.transaction, own[2], data):
            self.due[own[2]] = u8(data)
        key = f"user.safetensors.metadata.{self.who}"
        self.attempt("set metadata", os.setxattr, self.mount.path, key, str(at).encode())


class ToolEditor(Editor):
    def __init__(self, who, due, target, raw):
        super().__init__(who, due)
        self.target, self.raw = target, raw

    def stfs(self, *words):
        subprocess.run([STFS, *map(str, words)], check=True, capture_output=True, text=True)

    def round(self, at):
        new, other, data = f"{self.who}.new", f"{self.who}.other", b"t" * (50 + at)
        self.raw.write_bytes(data)
        if self.attempt("put", self.stfs, "put", "--create", "--dtype", "U8", self.target, new, self.raw):
            self.due[new] = u8(data)
        if new in self.due and self.attempt("mv", self.stfs, "mv", self.target, new, other):
            self.due[other] = self.due.pop(new)
        self.attempt("set", self.stfs, "set", self.target, "--metadata", f"{self.who}={at}")
        if other in self.due and self.attempt("rm", self.stfs, "rm", self.target, other):
            del self.due[other]


@pytest.mark.parametrize("kind", KINDS)
def test_two_mounts_and_the_tool_edit_one_model_at_once(kind, tmp_path, mounts):
    shared = Shared(kind, tmp_path)
    one, two = (mounts(shared.source, shared.options) for _ in range(2))
    editors = [MountEditor("a", shared.due, one), MountEditor("b", shared.due, two)]
    if kind != "delta":  # `stfs` edits no delta through its base
        editors.append(ToolEditor("c", shared.due, shared.target, tmp_path / "raw"))
    for editor in editors:
        editor.start()
    for editor in editors:
        editor.join()
    assert [failure for editor in editors for failure in editor.failures] == []
    due = {name: value for editor in editors for name, value in editor.due.items()}
    if kind == "delta":
        due.update({name: value for name, value in shared.due.items() if name.startswith("c")})

    def shows_all(mount):
        return content(mount / ".safetensors" / "archive.safetensors") == due and sorted(os.listdir(mount.path)) == sorted(due)

    for mount in (one, two):
        assert eventually(lambda at=mount: shows_all(at))
