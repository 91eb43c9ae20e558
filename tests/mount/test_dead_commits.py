# A receiver that is killed in the middle of a commit: mounts that run finish its commit, and show it whole.
import json
import os
import random
import signal
import subprocess
import time

import archive_file
import pytest
from mounted import eventually
from published_weights import Trainer, save, tensors_of
from test_weight_sync import STFS, stfs

NAMES = "abcd"


@pytest.mark.once
def test_a_commit_of_a_killed_receiver_is_shown_whole(tmp_path, mounts):
    tensors = {name: archive_file.random_array("f2", (6_000_001,), seed) for seed, name in enumerate(NAMES)}
    trainer = Trainer(tmp_path / "published", save(tmp_path / "model", tensors, shards=2))
    forth = trainer.step()
    shown = [mounts(trainer.model, options) for options in ("", "ro", "ro,on_change=fail")]
    chance = random.Random(3)

    def left_in_the_middle():
        """Applies a version and kills the command. @return whether that left a promised commit that is not applied everywhere."""
        process = subprocess.Popen([STFS, "apply", "--durability", "process", trainer.model, forth],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not any(name.endswith(".group") for name in os.listdir(trainer.model)):
            pass  # the commit is not promised yet
        time.sleep(chance.random() * 0.01)
        # Mounts would finish it at once.
        for mount in shown:
            os.kill(mount.pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        stored = tensors_of(trainer.model)
        is_torn = [stored[name] for name in NAMES] not in ([state[name].tobytes() for name in NAMES] for state in trainer.states)
        for mount in shown:
            os.kill(mount.pid, signal.SIGCONT)
        return is_torn

    def version_of(mount):
        try:
            content = {name: (mount.path / name).read_bytes() for name in NAMES}
        except OSError:  # the mount is about to show the next version
            return None
        found = [number for number, state in enumerate(trainer.states) if all(state[name].tobytes() == content[name] for name in NAMES)]
        return found[0] if found else None

    for _ in range(40):
        if left_in_the_middle():
            break
        stfs("recover", trainer.model)
        restore(trainer)
    else:
        pytest.fail("no kill came in the middle of a commit")
    for mount in shown:
        assert eventually(lambda mount=mount: version_of(mount) == 1), mount.log()
    assert eventually(lambda: "finished the commit of a process that has died" in shown[0].log() + shown[1].log())


def restore(trainer):
    """Version 0, in the same files."""
    there = {path: path.read_bytes() for path in trainer.model.glob("*.safetensors")}
    for path, content in there.items():
        content = bytearray(content)
        header = 8 + int.from_bytes(content[:8], "little")
        for name, entry in json.loads(content[8:header]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                content[header + begin:header + end] = trainer.states[0][name].tobytes()
        with open(path, "r+b") as file:
            file.write(content)
    state = trainer.model / ".weight_sync/state.json"
    if state.exists():
        state.unlink()
