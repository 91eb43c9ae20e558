# A user who may write the directory of a model, or who publishes its versions, plants what a weight sync finds there: state,
# notes, links. Root's pull and another user's must neither believe nor follow it.
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import archive_file
import numpy as np
import pytest
from mounted import BUILD, is_sanitized
from published_weights import INDEX, Trainer, archive_bytes, save, tensors_of, version_directory, write_archive
from test_journal_users import ALICE, is_run_by
from test_planted_files import MALLORY, VICTIMS, as_mallory, plant

OLD = {"a": archive_file.random_array("f2", (4001,), 1), "b": archive_file.random_array("u1", (12_345,), 2)}
NEW = {"a": archive_file.random_array("f4", (77, 3), 4), "d": archive_file.random_array("f2", (9,), 6)}

pytestmark = pytest.mark.needs_root


def own(path, uid):
    for at in [path, *Path(path).rglob("*")]:
        os.chown(at, uid, uid, follow_symlinks=False)
        if not at.is_symlink():
            at.chmod(0o755 if at.is_dir() else 0o644)


class Host:
    """A model of the victim's, in a directory that everybody may write, and versions of it."""

    def __init__(self, directory, ground, victim):
        self.victim = victim
        self.stfs = shutil.copy2(BUILD / "stfs", directory / "stfs")
        self.published = ground / "published"
        self.model = ground / "model"
        self.private = ground / "private"
        save(version_directory(self.published, 0), OLD)
        own(self.published, MALLORY)
        self.private.mkdir()
        for name in ("state.json", "state.json.tmp", "lock", "switch.json", "switch.tmp", "state.before"):
            (self.private / name).write_text('{"version": "000001"}')
        own(self.private, victim)
        self.private.chmod(0o700)
        save(self.model, OLD)
        own(self.model, victim)
        self.model.chmod(0o777)

    def pull(self, *options, model=None, published=None):
        return is_run_by(self.victim, self.victim,
                         [self.stfs, "pull", *options, str(model or self.model), str(published or self.published)], timeout=60)

    def step(self):
        """One more version, of changes."""
        trainer = Trainer(self.published, version_directory(self.published, 0))
        trainer.step()
        own(self.published, MALLORY)
        return trainer

    def private_files(self):
        return {path.name: path.read_text() for path in self.private.iterdir()}


@pytest.fixture(params=VICTIMS.values(), ids=VICTIMS.keys())
def host(request, planted_ground):
    return Host(*planted_ground, request.param)


def check_refused(host, done, *words):
    assert done.returncode == 1, done
    for word in words:
        assert word in done.stderr, done
    assert "/proc/self" not in done.stderr
    assert tensors_of(host.model) == {name: array.tobytes() for name, array in OLD.items()}


@pytest.mark.parametrize("name", [".weight_sync", ".model.safetensors.weight_sync"])
def test_a_link_in_place_of_the_state_is_not_followed(host, name):
    as_mallory('ln -s "$1" "$2"', host.private, host.model / name)
    before = host.private_files()
    for options in ((), ("--status",)):
        check_refused(host, host.pull(*options), f"{name}: is a symbolic link")
    assert host.private_files() == before and os.path.islink(host.model / name)


@pytest.mark.parametrize("make, why", [('ln -s "$1" "$2"', "is a symbolic link"), ('mkfifo "$2"', "is not a regular file"),
                                       ("", "has several names")], ids=["a link", "a pipe", "a second name"])
def test_a_lock_that_leads_elsewhere_is_not_taken(planted_ground, make, why):
    """The model is Mallory's, and root updates it. A lock on root's private file would stop the pulls of another model."""
    host = Host(*planted_ground, 0)
    own(host.model, MALLORY)
    lock = host.model / ".weight_sync/lock"
    as_mallory('mkdir "$1"', lock.parent)
    if make:
        as_mallory(make, host.private / "lock", lock)
    else:
        os.link(host.private / "lock", lock)
    check_refused(host, host.pull(), f"{lock}: {why}")


SWAPS = """
import itertools, os, sys
place, private = sys.argv[1:]
link = place + ".link"
os.symlink(private, link)
print("ready", flush=True)
for number in itertools.count():
    away = f"{place}.{number}"
    for here, there in (place, away), (link, place), (place, link), (away, place):
        try:
            os.rename(here, there)
        except OSError:  # the pull has made a new one meanwhile
            pass
"""


def test_a_link_that_takes_the_states_place_meanwhile_is_not_followed(host):
    assert host.pull().returncode == 0
    before = host.private_files()
    place = host.model / ".weight_sync"
    mallory = subprocess.Popen(["setpriv", f"--reuid={MALLORY}", f"--regid={MALLORY}", "--clear-groups", "--",
                                sys.executable, "-c", SWAPS, str(place), str(host.private)], stdout=subprocess.PIPE, text=True)
    try:
        if mallory.stdout.readline() != "ready\n":
            pytest.skip("another user can't run this Python")
        for number in range(1, 21):
            save(version_directory(host.published, number), NEW if number % 2 else OLD)
            own(host.published, MALLORY)
            assert host.pull().returncode in (0, 1)
    finally:
        mallory.kill()
        mallory.wait()
    assert host.private_files() == before


def test_a_state_of_a_user_who_may_not_write_the_model_is_not_believed(host):
    as_mallory('mkdir "$1" && echo \'{"version": "000001"}\' > "$1/state.json"', host.model / ".weight_sync")
    for options in ((), ("--status",)):
        done = host.pull(*options)
        check_refused(host, done, ".weight_sync: ", f"user {MALLORY}")
        assert "000001" not in done.stdout
    # The same holds if there is no model yet.
    shutil.rmtree(host.model)
    host.model.mkdir()
    own(host.model, host.victim)
    host.model.chmod(0o777)
    as_mallory('mkdir "$1" && echo \'{"version": "000001"}\' > "$1/state.json"', host.model / ".weight_sync")
    done = host.pull()
    assert done.returncode == 1 and f"user {MALLORY}" in done.stderr, done


def test_a_note_of_a_user_who_may_not_write_the_model_renames_nothing(host):
    place = host.model / ".weight_sync"
    note = {"ready": True, "archives": ["gone"], "step": ["gone", "model.safetensors"],
            "after": [["secret", "shown"]], "removed": ["model.safetensors"]}
    (host.model / "secret").write_text("secret")
    os.chown(host.model / "secret", host.victim, host.victim)
    # A file of the victim that others may write, under a second name in a directory of Mallory's.
    notes = host.model / "notes"
    notes.touch()
    os.chown(notes, host.victim, host.victim)
    notes.chmod(0o666)
    plant(notes, json.dumps(note).encode())
    as_mallory('mkdir -m 777 "$1" && ln "$2" "$1/switch.json"', place, notes)
    check_refused(host, host.pull(), ".weight_sync: ", f"user {MALLORY}")
    assert (host.model / "secret").read_text() == "secret" and not (host.model / "shown").exists()


def test_a_place_that_others_may_write_is_not_believed(host):
    place = host.model / ".weight_sync"
    place.mkdir()
    os.chown(place, host.victim, host.victim)
    place.chmod(0o777)
    plant(place / "state.json", b'{"version": "000001"}')
    check_refused(host, host.pull(), ".weight_sync: ", "mode 0777")


def test_a_state_of_who_may_write_the_model_is_believed(host):
    """Also after a pull with no umask, which lets everybody write what it makes."""
    host.step()
    shutil.rmtree(host.model)
    host.model.mkdir(mode=0o755)
    os.chown(host.model, host.victim, host.victim)
    for _ in range(2):
        done = is_run_by(host.victim, host.victim, ["sh", "-c", 'umask 0; exec "$@"', "sh", host.stfs, "pull", str(host.model),
                                                    str(host.published)])
        assert done.returncode == 0, done
    assert json.loads((host.model / ".weight_sync/state.json").read_text())["version"] == "000001"
    for name in (".weight_sync", ".weight_sync/state.json"):
        assert os.stat(host.model / name).st_mode & 0o022 == 0, name
    (host.model / "model.safetensors").chmod(0o644)
    assert host.pull().returncode == 0
    (host.model / ".weight_sync/state.json").chmod(0o666)
    done = host.pull()
    assert done.returncode == 1 and "state.json: " in done.stderr and "mode 0666" in done.stderr, done


def check_nothing_private(host):
    for path in host.model.rglob("*"):
        if path.is_file():
            assert b"SECRET" not in path.read_bytes(), path


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", INDEX])
def test_a_publication_with_a_link_to_a_private_file_is_refused(host, name):
    secret = host.private / name
    if name == "model.safetensors":
        save(host.private, {"SECRET": OLD["a"]})
    else:
        secret.write_text(json.dumps({"metadata": {"version": "000003"}, "weight_map": {"SECRET": "SECRET"}}))
    own(host.private, host.victim)
    host.private.chmod(0o700)
    version = version_directory(host.published, 3)
    save(version, NEW)
    own(host.published, MALLORY)
    as_mallory('rm -f "$2" && ln -s "$1" "$2"', secret, version / name)
    check_refused(host, host.pull(), f"{version / name}: ", "symbolic link")
    check_nothing_private(host)
    applied = is_run_by(host.victim, host.victim, [host.stfs, "apply", str(host.model), str(version)], timeout=60)
    # That reads no other files than the version's index and archives.
    check_refused(host, applied, *([] if name == "config.json" else ["symbolic link"]))
    check_nothing_private(host)


def test_a_version_that_is_itself_a_link_is_refused(host):
    save(host.private, {"SECRET": OLD["a"]})
    own(host.private, host.victim)
    host.private.chmod(0o700)
    version = version_directory(host.published, 3)
    as_mallory('ln -s "$1" "$2"', host.private, version)
    check_refused(host, host.pull(), str(version), "symbolic link")
    check_nothing_private(host)


def test_a_shard_in_another_directory_is_refused(host):
    version = version_directory(host.published, 3)
    save(version, NEW)
    (version / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {"a": "../../private/model.safetensors"}}))
    own(host.published, MALLORY)
    check_refused(host, host.pull(), INDEX)


def test_the_publication_may_be_named_by_a_link(host, planted_ground):
    trainer = host.step()
    link = planted_ground[1] / "latest"
    link.symlink_to(host.published)
    done = host.pull(published=link)
    assert done.returncode == 0, done
    assert tensors_of(host.model) == {name: bytes(data) for name, data in trainer.states[1].items()}


def pull_new_files(host):
    """Mallory publishes a version of other shards and one more file."""
    version = version_directory(host.published, 1)
    save(version, NEW, 2)
    (version / "config.json").write_text("{}")
    own(host.published, MALLORY)
    done = host.pull()
    assert done.returncode == 0, done
    assert tensors_of(host.model) == {name: np.ascontiguousarray(array).tobytes() for name, array in NEW.items()}


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_new_files_are_no_more_readable_than_the_model(planted_ground, victim):
    host = Host(*planted_ground, victim)
    for path in host.model, host.model / "model.safetensors":
        os.chown(path, ALICE, ALICE)
    (host.model / "model.safetensors").chmod(0o600)
    assert host.pull().returncode == 0
    pull_new_files(host)
    for path in [*host.model.glob("*.safetensors"), host.model / "config.json"]:
        assert (os.stat(path).st_mode & 0o777, os.stat(path).st_uid) == (0o600, ALICE), path


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_pull_gives_its_files_to_no_user_who_has_planted_the_model(planted_ground, victim):
    """The directory is the victim's, and everybody may write it. The model in it is Mallory's, and for everybody to write."""
    host = Host(*planted_ground, victim)
    os.chown(host.model / "model.safetensors", MALLORY, MALLORY)
    (host.model / "model.safetensors").chmod(0o666)
    done = host.pull()
    assert done.returncode == 0, done
    pull_new_files(host)
    for path in [*host.model.glob("*.safetensors"), host.model / "config.json"]:
        made = os.stat(path)
        assert made.st_uid == victim and made.st_mode & 0o022 == 0, path


OTHERS = {"Makefile": b"all: theirs\n", "other.safetensors": b"theirs", "b.safetensors.index.json": b"{}"}


@pytest.mark.parametrize("name", OTHERS)
def test_a_pull_replaces_no_file_that_no_version_has_brought(host, name):
    save(version_directory(host.published, 1), NEW, 2)
    own(host.published, MALLORY)
    assert host.pull().returncode == 0
    index = host.model / INDEX
    version = version_directory(host.published, 2)
    save(version, OLD, 2)
    (version / name).write_bytes(OTHERS[name])
    own(host.published, MALLORY)
    (host.model / name).write_bytes(b"the victim's")
    os.chown(host.model / name, host.victim, host.victim)
    (host.model / name).chmod(0o755)
    done = host.pull(model=index)
    assert done.returncode == 1 and str(host.model / name) in done.stderr and "rename or remove it" in done.stderr, done
    assert (host.model / name).read_bytes() == b"the victim's" and (host.model / name).stat().st_mode & 0o777 == 0o755
    os.rename(host.model / name, host.model / "away")
    done = host.pull(model=index)
    assert done.returncode == 0, done
    assert (host.model / name).stat().st_mode & 0o111 == 0
    # A later version replaces what this one has brought, and gives no right to execute.
    (host.model / name).chmod(0o755)
    version = version_directory(host.published, 3)
    save(version, NEW, 2)
    (version / name).write_bytes((version_directory(host.published, 2) / name).read_bytes() + b" ")
    own(host.published, MALLORY)
    done = host.pull(model=index)
    assert done.returncode == 0, done
    assert (host.model / name).read_bytes() == (version / name).read_bytes()
    assert (host.model / name).stat().st_mode & 0o111 == 0
    assert (host.model / "away").read_bytes() == b"the victim's"


def test_a_pull_leaves_a_file_that_has_the_bytes_already(host):
    version = version_directory(host.published, 0)
    (version / "notes.txt").write_text("{}")
    own(host.published, MALLORY)
    (host.model / "notes.txt").write_text("{}")
    before = (host.model / "notes.txt").stat()
    done = host.pull()
    assert done.returncode == 0, done
    assert (host.model / "notes.txt").stat().st_ino == before.st_ino
    # It was not brought, so a later version may not replace it: a publisher could know the bytes of any file.
    version = version_directory(host.published, 1)
    save(version, NEW)
    (version / "notes.txt").write_text('{"new": 1}')
    own(host.published, MALLORY)
    done = host.pull()
    assert done.returncode == 1 and str(host.model / "notes.txt") in done.stderr and "rename or remove it" in done.stderr, done
    assert (host.model / "notes.txt").stat().st_ino == before.st_ino
    os.unlink(host.model / "notes.txt")
    done = host.pull()
    assert done.returncode == 0 and (host.model / "notes.txt").read_text() == '{"new": 1}', done



def test_a_pull_replaces_the_files_that_libraries_look_for_beside_a_model(host):
    (host.model / "config.json").write_text("the victim's")
    save(version_directory(host.published, 1), NEW)
    (version_directory(host.published, 1) / "config.json").write_text("{}")
    own(host.published, MALLORY)
    done = host.pull()
    assert done.returncode == 0 and (host.model / "config.json").read_text() == "{}", done


def test_a_new_directory_that_is_exchanged_leads_nowhere_else(host, planted_ground):
    """Mallory may write the directory in which a pull makes the model's. The exchange comes just after the first mkdir(2)."""
    if is_sanitized():
        pytest.skip("a sanitizer has to be the first library that is loaded")
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    directory, ground = planted_ground
    library = directory / "exchanged_directory.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, Path(__file__).with_name("exchanged_directory.c"), "-ldl"],
                   check=True)
    save(version_directory(host.published, 1), NEW, 2)
    own(host.published, MALLORY)
    above = ground / "above"
    above.mkdir()
    above.chmod(0o777)
    before = host.private_files(), os.stat(host.private).st_mtime_ns
    exchange = ["env", f"LD_PRELOAD={library}", f"EXCHANGED={above / 'new'}", f"EXCHANGED_FOR={host.private}"]
    done = is_run_by(host.victim, host.victim, [host.stfs, "pull", str(above / "new" / "model"), str(host.published)], exchange,
                     timeout=60)
    assert (above / "new").is_symlink() and os.path.isdir(above / "new.moved"), done
    assert sorted(os.listdir(host.private)) == sorted(before[0]), done
    assert (host.private_files(), os.stat(host.private).st_mtime_ns) == before, done
    assert "/proc/self" not in done.stderr


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_link_in_place_of_the_model_gives_no_access(planted_ground, victim):
    """It leads to a model of Mallory's, which everybody may write."""
    host = Host(*planted_ground, victim)
    other = planted_ground[1] / "other"
    save(other, NEW)
    own(other, MALLORY)
    (other / "model.safetensors").chmod(0o666)
    as_mallory('rm -f "$1" && ln -s "$2" "$1"', host.model / "model.safetensors", other / "model.safetensors")
    before = (other / "model.safetensors").read_bytes()
    version = version_directory(host.published, 0)
    (version / "config.json").write_text("{}")
    own(host.published, MALLORY)
    done = host.pull()
    assert done.returncode == 0, done
    for path in host.model / "model.safetensors", host.model / "config.json":
        made = path.lstat()
        assert (made.st_uid, made.st_mode & 0o777) == (victim, 0o600), path
    assert (other / "model.safetensors").read_bytes() == before


# --- versions of Mallory's in a directory with the sticky bit ---------------------------------------------


def test_a_strangers_version_beside_those_of_the_publisher_is_left_out(host):
    """Mallory may make versions in the directory, but not replace the publisher's: neither his tensors nor his damage count."""
    own(host.published, host.victim)
    host.published.chmod(0o1777)
    version, empty = version_directory(host.published, 1), version_directory(host.published, 999_999_999_999)
    save(version, NEW)
    own(version, MALLORY)
    as_mallory('mkdir "$1"', empty)
    done = host.pull()
    assert done.returncode == 0 and f"{empty}: belongs to user {MALLORY}" in done.stderr, done
    assert tensors_of(host.model) == {name: array.tobytes() for name, array in OLD.items()}
    check_refused(host, host.pull("--to", "1", "--wait", "0"), f"{version}: belongs to user {MALLORY}")
    # The owner of the directory may publish there, also for other users.
    own(version, host.victim)
    done = host.pull("--to", "1")
    assert done.returncode == 0, done
    assert tensors_of(host.model) == {name: array.tobytes() for name, array in NEW.items()}


# --- a model of Mallory's in a directory with the sticky bit ----------------------------------------------


def test_a_note_beside_a_planted_model_moves_no_files_of_others(host):
    """Mallory may write that model, but neither remove nor rename the files beside it."""
    host.model.chmod(0o1777)
    os.chown(host.model, ALICE, ALICE)
    os.unlink(host.model / "model.safetensors")
    for name in ("precious", "other"):
        (host.model / name).write_text(name)
        os.chown(host.model / name, host.victim, host.victim)
    source = version_directory(host.published, 0) / "model.safetensors"
    as_mallory('cp "$1" "$2" && mkdir "$3"', source, host.model / "model.safetensors", host.model / ".model.safetensors.weight_sync")
    note = {"ready": True, "archives": [], "step": ["gone", "model.safetensors"], "after": [["other", "shown"]], "removed": ["precious"]}
    plant(host.model / ".model.safetensors.weight_sync/switch.json", json.dumps(note).encode())
    check_refused(host, host.pull(model=host.model / "model.safetensors"), f"user {MALLORY}")
    assert (host.model / "precious").read_text() == "precious" and (host.model / "other").read_text() == "other"
    assert not (host.model / "shown").exists()


def test_only_the_victim_holds_the_lock_of_a_first_pull(host):
    host.model.chmod(0o1777)
    os.unlink(host.model / "model.safetensors")
    done = host.pull()
    assert done.returncode == 0, done
    lock = host.model / ".weight_sync/lock"
    assert os.stat(lock).st_mode & 0o066 == 0
    held = is_run_by(MALLORY, MALLORY, ["flock", "--nonblock", str(lock), "true"])
    assert held.returncode != 0, held


def test_planted_archives_stop_no_pull(host):
    host.model.chmod(0o1777)
    assert host.pull().returncode == 0
    for name in "aaa", "zzz":
        plant(host.model / f"{name}.safetensors", b"x\n")
    trainer = host.step()
    status = host.pull("--status")
    assert status.returncode == 0 and "000000" in status.stdout, status
    done = host.pull()
    assert done.returncode == 0, done
    for name in "aaa", "zzz":
        os.unlink(host.model / f"{name}.safetensors")
    assert tensors_of(host.model) == {name: bytes(data) for name, data in trainer.states[1].items()}
    assert json.loads((host.model / ".weight_sync/state.json").read_text())["version"] == "000001"


@pytest.mark.parametrize("names", [("aaa",), ("aaa", "zzz")])
def test_planted_archives_alone_stop_no_first_pull(host, names):
    host.model.chmod(0o1777)
    os.unlink(host.model / "model.safetensors")
    for name in names:
        plant(host.model / f"{name}.safetensors", b"x\n")
    done = host.pull()
    assert done.returncode == 0, done
    for name in names:
        os.unlink(host.model / f"{name}.safetensors")
    assert tensors_of(host.model) == {name: array.tobytes() for name, array in OLD.items()}


# --- names of a full version that Mallory takes, where each user may only make entries ---------------------


def take_common_directory(host):
    """A directory of root's, where the victim has a model, and where no user may remove an entry of another one."""
    os.chown(host.model, 0, 0)
    host.model.chmod(0o1777)
    version = version_directory(host.published, 1)
    save(version, NEW, 2)
    (version / "config.json").write_text("{}")
    own(host.published, MALLORY)


def leave_switch(host, *, is_ready, after):
    """Leaves the note of a pull that was killed."""
    assert host.pull("--to", "0").returncode == 0
    note = {"ready": is_ready, "archives": ["new.safetensors"], "step": [".stfs-step.tmp", INDEX], "after": after, "removed": []}
    path = host.model / ".weight_sync/switch.json"
    path.write_text(json.dumps(note))
    os.chown(path, host.victim, host.victim)


taken_by = pytest.mark.parametrize("make", ['mkdir "$1"', ': > "$1"', 'ln -s nowhere "$1"'], ids=["a directory", "a file", "a link"])


def check_new(host):
    assert tensors_of(host.model) == {name: np.ascontiguousarray(array).tobytes() for name, array in NEW.items()}
    assert json.loads((host.model / ".weight_sync/state.json").read_text())["version"] == "000001"
    assert not (host.model / ".weight_sync/switch.json").exists()


@taken_by
@pytest.mark.parametrize("name", [".stfs-step.tmp", ".stfs-after.tmp"])
def test_a_noted_name_that_mallory_has_taken_stops_no_pull(host, name, make):
    take_common_directory(host)
    leave_switch(host, is_ready=False, after=[[".stfs-after.tmp", "config.json"]])
    as_mallory(make, host.model / name)
    done = host.pull()
    assert done.returncode == 0, done
    check_new(host)
    assert (host.model / "config.json").read_text() == "{}"
    assert os.lstat(host.model / name).st_uid == MALLORY


@pytest.mark.parametrize("make", ['mkdir "$1"', ': > "$1"'], ids=["a directory", "a file"])
def test_a_final_name_that_mallory_has_taken_after_the_step_stops_no_later_pull(host, make):
    """The pull of version 0 was killed after its step. A later pull patches the model; the file waits for its name."""
    take_common_directory(host)
    shutil.rmtree(version_directory(host.published, 1))
    leave_switch(host, is_ready=True, after=[[".stfs-after.tmp", "config.json"]])
    after = host.model / ".stfs-after.tmp"
    after.write_text("{}")
    os.chown(after, host.victim, host.victim)
    as_mallory(make, host.model / "config.json")
    is_replaceable = host.victim == 0 and "mkdir" not in make
    trainer = host.step()
    for _ in range(2):
        done = host.pull("--wait", "0")
        assert tensors_of(host.model) == {name: bytes(data) for name, data in trainer.states[1].items()}
        assert json.loads((host.model / ".weight_sync/state.json").read_text())["version"] == "000001"
        if not is_replaceable:
            assert done.returncode == 1 and f"{host.model}/config.json: a " in done.stderr, done
            assert f" of user {MALLORY} has the name of this file" in done.stderr and "/proc/self" not in done.stderr, done
    if not is_replaceable:
        as_mallory('rm -r "$1"', host.model / "config.json")
        done = host.pull("--wait", "0")
    assert done.returncode == 0, done
    assert (host.model / "config.json").read_text() == "{}" and not after.exists()
    assert not (host.model / ".weight_sync/switch.json").exists()


@pytest.mark.parametrize("make", ['mkdir "$1"', 'mkdir -m 700 "$1"', ': > "$1"', 'ln -s nowhere "$1"'],
                         ids=["a directory", "a private directory", "a file", "a link"])
def test_a_planted_place_of_the_model_does_not_hide_its_state(host, make):
    host.model.chmod(0o1777)
    assert host.pull().returncode == 0
    as_mallory(make, host.model / ".model.safetensors.weight_sync")
    trainer = host.step()
    done = host.pull()
    assert done.returncode == 0, done
    assert tensors_of(host.model) == {name: bytes(data) for name, data in trainer.states[1].items()}
    assert json.loads((host.model / ".weight_sync/state.json").read_text())["version"] == "000001"


# --- a model that everybody may write, in a directory of the victim's alone -------------------------------


@pytest.fixture
def open_model(host):
    """Mallory may write the model, and so the place of its state, but no other name of the directory."""
    host.model.chmod(0o755)
    (host.model / "model.safetensors").chmod(0o666)
    done = is_run_by(host.victim, host.victim,
                     ["sh", "-c", 'umask 0; exec "$@"', "sh", host.stfs, "pull", str(host.model), str(host.published)])
    assert done.returncode == 0, done
    host.place = host.model / ".weight_sync"
    assert os.stat(host.place).st_mode & 0o777 == 0o777
    for name in ("precious", "other"):
        (host.model / name).write_text(name)
        os.chown(host.model / name, host.victim, host.victim)
    return host


NOTE = {"ready": True, "archives": [], "step": ["gone", "model.safetensors"], "after": [["other", "shown"]], "removed": ["precious"]}


def check_names_stay(host, done):
    check_refused(host, done, "switch.json: ")
    assert (host.model / "precious").read_text() == "precious" and (host.model / "other").read_text() == "other"
    assert not (host.model / "shown").exists()
    # A user who may write the directory removes the file, and then nothing blocks the pull.
    os.unlink(host.place / "switch.json")
    host.step()
    done = host.pull()
    assert done.returncode == 0, done


def test_a_right_to_the_model_is_none_to_the_files_beside_it(open_model):
    plant(open_model.place / "switch.json", json.dumps(NOTE).encode())
    check_names_stay(open_model, open_model.pull())


def test_a_state_under_the_name_of_a_note_renames_nothing(open_model):
    """Members that a pull does not know stay in the state, which is the victim's."""
    plant(open_model.place / "new.json", json.dumps({"version": "000000", "model": "model.safetensors"} | NOTE).encode())
    as_mallory('mv -f "$1" "$2"', open_model.place / "new.json", open_model.place / "state.json")
    open_model.step()
    assert open_model.pull().returncode == 0
    state = open_model.place / "state.json"
    assert os.stat(state).st_uid == open_model.victim and json.loads(state.read_text())["removed"] == ["precious"]
    state.chmod(0o644)
    as_mallory('mv "$1" "$2"', state, open_model.place / "switch.json")
    done = open_model.pull()
    assert done.returncode == 1 and "switch.json: damaged" in done.stderr, done
    assert (open_model.model / "precious").exists() and (open_model.model / "other").exists()


def test_a_file_of_the_victim_that_is_linked_as_a_note_renames_nothing(open_model):
    notes = open_model.private / "switch.json"
    notes.write_text(json.dumps(NOTE))
    os.link(notes, open_model.place / "switch.json")
    check_names_stay(open_model, open_model.pull())


@pytest.mark.parametrize("mode", [0o600, 0o640])
@pytest.mark.parametrize("name", ["notes.txt", "model.safetensors", INDEX])
def test_a_private_file_that_the_publisher_has_moved_to_a_version_is_not_copied(host, planted_ground, name, mode):
    shared = planted_ground[1] / "shared"
    save(shared, {"SECRET": OLD["a"]})
    for other in ("notes.txt", INDEX):
        (shared / other).write_text(json.dumps({"metadata": {"SECRET": "x"}, "weight_map": {"SECRET": "model.safetensors"}}))
    own(shared, host.victim)
    shared.chmod(0o777)
    (shared / name).chmod(mode)
    version = version_directory(host.published, 3)
    save(version, NEW)
    own(host.published, MALLORY)
    as_mallory('mv -f "$1" "$2"', shared / name, version / name)
    done = host.pull()
    check_refused(host, done, f"{version / name}: belongs to user {host.victim}", f"user {MALLORY} may write its directory")
    check_nothing_private(host)
    # A file that the publisher may read has nothing to hide.
    (version / name).chmod(0o644)
    assert "may write its directory" not in host.pull().stderr


def test_versions_of_usual_publishers_are_pulled(host):
    """A publisher with umask 077, one who shares the directory with a group, root, and the user of the pull."""
    ways = [(MALLORY, MALLORY, 0o700, 0o600)] if host.victim == 0 else []
    ways += [(MALLORY, host.victim, 0o2775, 0o664), (0, 0, 0o755, 0o644), (host.victim, host.victim, 0o700, 0o600),
             (host.victim, host.victim, 0o2775, 0o600)]
    for number, (uid, gid, directory_mode, mode) in enumerate(ways, 1):
        version = version_directory(host.published, number)
        save(version, NEW if number % 2 else OLD)
        (version / "config.json").write_text("{}")
        for path in [*version.iterdir(), version]:
            os.chown(path, uid, gid)
            path.chmod(directory_mode if path == version else mode)
        done = host.pull()
        assert done.returncode == 0, (number, done)
    # A file of another member of the group, which all users may read.
    version = version_directory(host.published, 9)
    save(version, NEW)
    (version / "model.safetensors").chmod(0o644)
    os.chown(version, MALLORY, host.victim)
    version.chmod(0o2775)
    done = host.pull()
    assert done.returncode == 0, done


def peak_bytes_of(*command):
    """The most memory that a program of root's takes. The program must succeed."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer takes memory too")
def test_a_chain_of_versions_that_share_a_long_file_takes_the_memory_of_one(planted_ground):
    """Each version after the first one costs the publisher an index and a hard link."""
    long_bytes, most = 20 << 20, 12
    host = Host(*planted_ground, 0)
    first = host.step().published / "weight_v000001"
    index = json.loads((first / INDEX).read_text())
    for path in first.glob("*.safetensors"):
        archive = archive_bytes(path)
        metadata = archive["header"].pop("__metadata__") | {"long": "x" * long_bytes}
        tensors = {name: (entry["dtype"], entry["shape"], archive["data"][slice(*entry["data_offsets"])])
                   for name, entry in archive["header"].items()}
        write_archive(path, tensors, metadata)
    for number in range(2, most + 1):
        later = version_directory(host.published, number)
        later.mkdir()
        for path in first.glob("*.safetensors"):
            os.link(path, later / path.name)
        index["metadata"] |= {"version": f"{number:06d}", "base_version": f"{number - 1:06d}"}
        (later / INDEX).write_text(json.dumps(index))
    own(host.published, MALLORY)
    shutil.copytree(host.model, host.model.with_name("other"))
    few = peak_bytes_of(host.stfs, "pull", "--to", "1", host.model, host.published)
    many = peak_bytes_of(host.stfs, "pull", host.model.with_name("other"), host.published)
    assert many < few + 2 * long_bytes
    assert tensors_of(host.model) == tensors_of(host.model.with_name("other"))
