# stfs.pull and stfs.publish: versions from one Python to another, and a model in memory that follows.
import os
import shutil
import signal

import numpy as np
import pytest
import stfs
from published_weights import Trainer, save, state_of, version_directory

TENSORS = {"a": np.arange(5000, dtype="f4"), "b": np.arange(33, dtype="u1"), "c": np.array(7, "f4")}


@pytest.fixture
def trainer(tmp_path):
    """Version 0 is full and published."""
    return Trainer(tmp_path / "published", save(tmp_path / "published/weight_v000000", TENSORS))


def test_a_pull_tells_each_version_and_what_has_changed(trainer, tmp_path):
    trainer.step(names=["b"])
    trainer.step()
    events = []
    assert stfs.pull(tmp_path / "host", trainer.published, on_event=events.append) == 2
    assert [(event.kind, event.version, event.changed) for event in events] == [
        ("seeded", "000000", []), ("applied", "000001", ["b"]), ("applied", "000002", ["a", "b", "c"])]
    assert trainer.version_of(tmp_path / "host") == state_of(tmp_path / "host") == 2
    assert stfs.pull(tmp_path / "host", trainer.published, to=2, durability="process", threads=1) == 2


def test_nothing_is_published_yet(tmp_path):
    (tmp_path / "published").mkdir()
    assert stfs.pull(tmp_path / "host", tmp_path / "published") is None


def test_an_exception_of_the_callback_ends_the_pull_behind_its_version(trainer, tmp_path):
    trainer.step()

    def refuse(event):
        raise ZeroDivisionError(event.version)
    with pytest.raises(ZeroDivisionError, match="000000"):
        stfs.pull(tmp_path / "host", trainer.published, on_event=refuse)
    assert trainer.version_of(tmp_path / "host") == state_of(tmp_path / "host") == 0


def test_errors_have_their_errno(trainer, tmp_path):
    with pytest.raises(BlockingIOError, match="version 000009 is not published yet"):
        stfs.pull(tmp_path / "host", trainer.published, to=9, wait=0)
    with pytest.raises(FileNotFoundError):
        stfs.pull(tmp_path / "host", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="durability"):
        stfs.pull(tmp_path / "host", trainer.published, durability="none")


def test_progress_reaches_the_total_of_each_version(trainer, tmp_path):
    trainer.step()
    said = []
    stfs.pull(tmp_path / "host", trainer.published, progress=lambda done, total: said.append((done, total)))
    size_bytes = sum(tensor.nbytes for tensor in TENSORS.values())
    assert any(done == total > size_bytes for done, total in said), "of the full version, with its header"
    assert (0, size_bytes) in said and said[-1] == (size_bytes, size_bytes), "of the version that changes tensors"
    changed = save(tmp_path / "changed", TENSORS | {"a": TENSORS["a"] + 1})
    said.clear()
    stfs.publish(trainer.model, changed, tmp_path / "elsewhere", 1, progress=lambda done, total: said.append((done, total)))
    assert (said[0], said[-1]) == ((0, size_bytes), (size_bytes, size_bytes))


@pytest.mark.parametrize("exception", [ZeroDivisionError, KeyboardInterrupt])
def test_a_cancelled_pull_leaves_the_version_of_before(trainer, tmp_path, exception):
    """An exception of `progress`, or Ctrl-C, during the pull of the first version or of a later one."""
    def stop(done, total):
        if exception is ZeroDivisionError:
            raise ZeroDivisionError
        signal.raise_signal(signal.SIGINT)  # its handler runs in the next call, or at the end of this one
    host = tmp_path / "host"
    with pytest.raises(exception):
        stfs.pull(host, trainer.published, progress=stop)
    assert not host.exists() or not list(host.iterdir())
    assert stfs.pull(host, trainer.published) == 0
    trainer.step()
    with pytest.raises(exception):
        stfs.pull(host, trainer.published, progress=stop)
    assert trainer.version_of(host) == state_of(host) == 0
    assert stfs.pull(host, trainer.published) == trainer.version_of(host) == 1


@pytest.mark.parametrize("exception", [ZeroDivisionError, KeyboardInterrupt])
def test_a_cancelled_publication_leaves_nothing(trainer, tmp_path, exception):
    def stop(done, total):
        raise exception
    changed = save(tmp_path / "changed", TENSORS | {"a": TENSORS["a"] + 1})
    published = tmp_path / "elsewhere"
    with pytest.raises(exception):
        stfs.publish(trainer.model, changed, published, 1, progress=stop)
    assert not published.exists() or not list(published.iterdir())
    stfs.publish(trainer.model, changed, published, 1)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_versions_are_published_from_paths_and_open_models(trainer, tmp_path, encoding):
    changed = save(tmp_path / "changed", TENSORS | {"a": TENSORS["a"] + 1})
    stfs.publish(trainer.model, changed, trainer.published, 1, encoding=encoding, checksum="adler32")
    with stfs.open(changed) as old, stfs.open(trainer.model) as new:
        stfs.publish(old, new, trainer.published, 5, base=1)
    with pytest.raises(FileExistsError):
        stfs.publish(trainer.model, changed, trainer.published, 1)
    with pytest.raises(ValueError, match="encoding"):
        stfs.publish(trainer.model, changed, trainer.published, 2, encoding="zip")
    assert stfs.pull(tmp_path / "host", trainer.published, to=1) == 1
    assert not stfs.diff(tmp_path / "host", changed)
    assert stfs.pull(tmp_path / "host", trainer.published) == 5
    assert trainer.version_of(tmp_path / "host") == 0
    os.unlink(version_directory(trainer.published, 5) / "model.safetensors.index.json")


def test_a_mount_is_published_since_a_generation(tmp_path, mounts):
    source = save(tmp_path / "model", TENSORS)
    last = shutil.copytree(source, tmp_path / "last")
    mount = mounts(source / "model.safetensors")
    published = tmp_path / "published"
    generation = stfs.publish(last, mount.path, published, 1)
    assert generation == int(os.getxattr(mount.path, "user.safetensors.generation"))
    for version, name in enumerate(["b", "a"], start=2):
        content = os.urandom(TENSORS[name].nbytes)
        (mount / name).write_bytes(content)
        before, generation = generation, stfs.publish(last, mount.path, published, version, since=generation)
        assert generation > before
        events = []
        assert stfs.pull(last, published, on_event=events.append) == version
        assert events[-1].changed == [name] and (mount / name).read_bytes() == content
        assert not stfs.diff(last, source)
    with pytest.raises(ValueError, match="is no mount, and only mounts have generations"):
        stfs.publish(last, source, published, 9, since=generation)
    assert stfs.publish(last, source, published, 9) is None


def test_a_model_in_memory_follows_by_the_list_of_changes(trainer, tmp_path):
    """The example of the documentation, with NumPy arrays in place of parameters."""
    host = tmp_path / "host"
    stfs.pull(host, trainer.published)
    with stfs.open(host) as model:
        parameters = {name: np.from_dlpack(model[name]).copy() for name in model}
    addresses = {name: array.ctypes.data for name, array in parameters.items()}
    for names in (["b"], None, ["a", "c"]):
        trainer.step(names=names)
        changed = []
        stfs.pull(host, trainer.published, on_event=lambda event: changed.extend(event.changed))  # noqa: B023
        with stfs.open(host) as model:
            for name in changed:
                np.copyto(parameters[name], np.from_dlpack(model[name]))
        for name, content in trainer.states[-1].items():
            assert parameters[name].tobytes() == content.tobytes()
    assert {name: array.ctypes.data for name, array in parameters.items()} == addresses
