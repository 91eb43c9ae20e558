# A user who may write the directory of an output plants links under its name: to a set-id program, to a private file, to nothing.
# The outputs of tools of root and of another user replace the link, or are refused, and never take the mode of the link's target.
import errno
import os
import shutil
import signal
import stat
import subprocess

import archive_file
import pytest
from access_list import let_user
from mounted import BUILD
from published_weights import INDEX, save
from test_journal_users import ALICE, GROUP, is_run_by
from test_planted_files import MALLORY, VICTIMS, as_mallory

TENSORS = {"a": archive_file.random_array("f4", (40, 10), 1), "b": archive_file.random_array("u1", (345,), 2)}
OTHER = {"a": archive_file.random_array("f4", (40, 10), 3), "b": TENSORS["b"]}
OUTPUTS = {
    "slice": ("x.bin", ["slice", "{model}", "a[:3]", "-o", "{out}"]),
    "repack": ("x.safetensors", ["repack", "{model}", "{out}"]),
    "verify": ("x.json", ["verify", "{model}", "--record", "{out}"]),
    "diff": ("x.delta.safetensors", ["diff", "{model}", "{other}", "--out", "{out}"]),
    "sample": ("x.safetensors", ["sample", "{out}"]),
}
FROM_SHARDS = [verb for verb in OUTPUTS if verb != "sample"]

pytestmark = pytest.mark.needs_root


class Place:
    """A directory that everybody may write, and the victim's files elsewhere."""

    def __init__(self, directory, ground, victim):
        self.victim = victim
        self.stfs = shutil.copy2(BUILD / "stfs", directory / "stfs")
        self.model, self.other = ground / "model.safetensors", ground / "other.safetensors"
        archive_file.save_with_reference(self.model, TENSORS)
        archive_file.save_with_reference(self.other, OTHER)
        self.program, self.secret = ground / "program", ground / "secret"
        for path, mode in ((self.model, 0o644), (self.other, 0o644), (self.program, 0o6755), (self.secret, 0o600)):
            if not path.exists():
                path.write_text("the victim's")
            os.chown(path, victim, victim)
            path.chmod(mode)
        self.outputs = ground / "outputs"
        self.outputs.mkdir()
        self.outputs.chmod(0o777)
        self.nothing = ground / "nothing"
        ground.chmod(0o777)

    def run(self, words, out, *more):
        words = [word.format(model=self.model, other=self.other, out=out) for word in words]
        return is_run_by(self.victim, self.victim, [self.stfs, *words, *more], timeout=60)


@pytest.mark.parametrize("verb", FROM_SHARDS)
@pytest.mark.parametrize("given", [0o2777, 0o777], ids=["by the directory", "by the user"])
def test_an_output_is_not_for_another_group_than_the_models(planted_ground, given, verb):
    """The new file gets its group from the directory (set-group-id), or from a user whose first group is Mallory's."""
    place = Place(*planted_ground, 0)
    name, words = OUTPUTS[verb]
    out = place.outputs / name
    os.chown(place.outputs, 0, MALLORY)
    place.outputs.chmod(given)
    for path in (place.model, place.other):
        os.chown(path, ALICE, GROUP)
        path.chmod(0o640)
    uid, gid = (0, 0) if given == 0o2777 else (ALICE, MALLORY)
    done = subprocess.run(["setpriv", f"--reuid={uid}", f"--regid={gid}", f"--groups={GROUP}", "--", place.stfs,
                           *[word.format(model=place.model, other=place.other, out=out) for word in words]],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    made = os.lstat(out)
    assert made.st_gid == MALLORY and made.st_mode & 0o077 == 0, oct(made.st_mode)
    assert is_run_by(MALLORY, MALLORY, ["cat", out]).returncode != 0


@pytest.mark.parametrize("given", [0o2777, 0o777], ids=["by the directory", "by the user"])
def test_a_new_delta_is_not_for_another_group_than_the_bases(planted_ground, mounts, given):
    place = Place(*planted_ground, 0)
    delta = place.outputs / "new.delta.safetensors"
    os.chown(place.outputs, 0, MALLORY)
    place.outputs.chmod(given)
    os.chown(place.model, 0, GROUP)
    place.model.chmod(0o640)
    before = os.getegid()
    if given == 0o777:
        os.setegid(MALLORY)
    try:
        mount = mounts(place.model, f"delta={delta},allow_other")
    finally:
        os.setegid(before)
    (mount / "scratch").write_text("private")
    (mount / ".safetensors" / "pretrained" / "notes").write_text("private")
    made = os.lstat(delta)
    assert made.st_gid == MALLORY and made.st_mode & 0o077 == 0, oct(made.st_mode)
    for path in (delta, place.outputs / f".{delta.name}.scratch" / "scratch", place.outputs / f"{delta.name}.pretrained" / "notes"):
        assert path.exists(), path
        assert is_run_by(MALLORY, MALLORY, ["cat", path]).returncode != 0, path
    assert mount.unmount() == 0


def mark(directory):
    """Gives the directory the attribute that the root of a mount has."""
    try:
        os.setxattr(directory, "user.safetensors.archive", b"x")
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("the file system has no attributes of users")


@pytest.mark.parametrize("verb", OUTPUTS)
def test_an_attribute_of_a_directory_above_stops_no_output(planted_ground, verb):
    """Mallory may set it where Mallory may write."""
    place = Place(*planted_ground, 0)
    mark(place.outputs)
    private = place.outputs / "private"
    private.mkdir(mode=0o700)
    name, words = OUTPUTS[verb]
    for directory in (place.outputs, private):
        done = place.run(words, directory / name)
        assert done.returncode == 0, done
        assert (directory / name).exists()


def test_an_attribute_of_a_directory_above_stops_no_delta_of_a_mount(planted_ground, mounts):
    place = Place(*planted_ground, 0)
    mark(place.outputs)
    mount = mounts(place.model, f"delta={place.outputs / 'new.delta.safetensors'}")
    assert (place.outputs / "new.delta.safetensors").exists()
    assert mount.unmount() == 0


@pytest.mark.parametrize("verb", OUTPUTS)
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_an_output_takes_nothing_from_a_planted_link(planted_ground, victim, verb):
    place = Place(*planted_ground, victim)
    name, words = OUTPUTS[verb]
    for at, target in enumerate((place.program, place.secret, place.nothing)):
        out = place.outputs / f"{at}{name}"
        as_mallory('ln -s "$1" "$2"', target, out)
        before = os.stat(target) if target.exists() else None
        refused = place.run(words, out)
        assert refused.returncode == 1 and str(out) in refused.stderr, refused
        assert out.is_symlink()
        done = place.run(words, out, "--force")
        assert done.returncode == 0, done
        made = os.lstat(out)
        assert stat.S_ISREG(made.st_mode) and made.st_uid == victim, done
        assert made.st_mode & 0o7133 == 0
        if before is None:
            assert not target.exists()
        else:
            after = os.stat(target)
            assert target.read_text() == "the victim's"
            assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (before.st_mode, before.st_uid, before.st_mtime_ns)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
@pytest.mark.parametrize("verb", OUTPUTS)
def test_an_output_takes_no_owner_and_no_mode_from_a_planted_file(planted_ground, verb, mode):
    place = Place(*planted_ground, 0)
    name, words = OUTPUTS[verb]
    out = place.outputs / name
    as_mallory('echo > "$1"; chmod 0666 "$1"', out)
    place.outputs.chmod(mode)
    done = place.run(words, out, "--force")
    assert done.returncode == 0, done
    made = os.lstat(out)
    assert made.st_uid == 0 and made.st_mode & 0o022 == 0
    # In a directory of its owner, the owner keeps it.
    os.chown(place.outputs, MALLORY, MALLORY)
    os.chown(out, MALLORY, MALLORY)
    assert place.run(words, out, "--force").returncode == 0
    assert os.lstat(out).st_uid == MALLORY


@pytest.mark.parametrize("verb", OUTPUTS)
def test_in_a_user_namespace_an_unknown_user_is_not_the_unknown_owner_of_the_directory(planted_ground, verb):
    """There the kernel shows one number, 65534, for all users outside."""
    place = Place(*planted_ground, ALICE)
    name, words = OUTPUTS[verb]
    out = place.outputs / name
    as_mallory('echo > "$1"; chmod 0666 "$1"', out)
    os.chown(place.outputs, MALLORY + 1, MALLORY + 1)
    words = [word.format(model=place.model, other=place.other, out=out) for word in words]
    done = is_run_by(ALICE, ALICE, ["unshare", "-Ur", "--", place.stfs, *words, "--force"], timeout=60)
    if "unshare failed" in done.stderr:
        pytest.skip("user namespaces are not allowed here")
    assert done.returncode == 0, done
    made = os.lstat(out)
    assert made.st_uid == ALICE and made.st_mode & 0o022 == 0


@pytest.mark.parametrize("verb", OUTPUTS)
def test_an_output_takes_no_set_id_bit_from_the_file_that_it_replaces(planted_ground, verb):
    place = Place(*planted_ground, 0)
    name, words = OUTPUTS[verb]
    out = place.outputs / name
    shutil.copy2(place.program, out)
    out.chmod(0o7777)
    assert place.run(words, out).returncode == 1
    done = place.run(words, out, "--force")
    assert done.returncode == 0, done
    assert os.lstat(out).st_mode & 0o7000 == 0


def can_mallory_read(path):
    return is_run_by(MALLORY, MALLORY, ["cat", path], text=False).returncode == 0


@pytest.mark.parametrize("is_replaced", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("mode", [0o660, 0o640])
@pytest.mark.parametrize("verb", FROM_SHARDS)
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_default_list_of_the_directory_opens_no_output_of_a_private_shard(planted_ground, victim, verb, mode, is_replaced):
    place = Place(*planted_ground, victim)
    name, words = OUTPUTS[verb]
    out = place.outputs / name
    for path in (place.model, place.other):
        path.chmod(mode)
    if is_replaced:
        assert place.run(words, out).returncode == 0
        assert not can_mallory_read(out)
    # New files may be read and written by Mallory, as far as their group's bits allow.
    let_user(MALLORY, 0o7, place.outputs, group=0o7, kind="default")
    done = place.run(words, out, *["--force"][:is_replaced])
    assert done.returncode == 0, done
    assert not can_mallory_read(out), os.getxattr(out, "system.posix_acl_access")
    made = os.lstat(out)
    assert made.st_uid == victim and made.st_mode & 0o777 & ~mode == 0 and made.st_mode & 0o600 == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
@pytest.mark.parametrize("verb", FROM_SHARDS)
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_an_output_of_a_private_shard_does_not_get_the_mode_of_a_renamed_public_file(planted_ground, victim, verb, mode):
    """Mallory moves a public file of the victim's to the name of the output. The sticky bit does not stop a move into a directory."""
    place = Place(*planted_ground, victim)
    name, words = OUTPUTS[verb]
    out = place.outputs / name
    for path in (place.model, place.other):
        path.chmod(0o600)
    public = planted_ground[1] / "public"
    public.write_text("the victim's")
    os.chown(public, victim, victim)
    public.chmod(0o644)
    os.chown(place.outputs, victim, MALLORY)
    place.outputs.chmod(mode)
    as_mallory('mv "$1" "$2"', public, out)
    done = place.run(words, out, "--force")
    assert done.returncode == 0, done
    assert not can_mallory_read(out)
    # The same in a directory of the victim's only: another user may exchange the directory.
    place.outputs.chmod(0o755)
    out.chmod(0o644)
    assert place.run(words, out, "--force").returncode == 0
    assert os.lstat(out).st_mode & 0o777 == 0o600
    # Outputs of public shards keep their mode.
    for path in (place.model, place.other):
        path.chmod(0o644)
    for kept in (0o644, 0o640, 0o600):
        out.chmod(kept)
        assert place.run(words, out, "--force").returncode == 0
        assert os.lstat(out).st_mode & 0o777 == kept


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777])
@pytest.mark.parametrize("verb", FROM_SHARDS)
def test_an_output_of_roots_private_shard_does_not_go_to_the_owner_of_the_replaced_file(planted_ground, verb, mode):
    """The directory and the output are Mallory's, and so are the links to root's archives, which root's tool follows."""
    place = Place(*planted_ground, 0)
    name, words = OUTPUTS[verb]
    out = place.outputs / name
    os.chown(place.outputs, MALLORY, MALLORY)
    place.outputs.chmod(mode)
    links = []
    for path in (place.model, place.other):
        path.chmod(0o600)
        links.append(place.outputs / f"link-{path.name}")
        as_mallory('ln -s "$1" "$2"', path, links[-1])
    as_mallory('echo > "$1"; chmod 0644 "$1"', out)
    words = [word.format(model=links[0], other=links[1], out=out) for word in words]
    done = place.run(words, None, "--force")
    assert done.returncode == 0, done
    assert not can_mallory_read(out)
    made = os.lstat(out)
    assert (made.st_uid, made.st_mode & 0o777) == (0, 0o600)


@pytest.mark.parametrize("verb", FROM_SHARDS)
def test_an_output_of_root_from_a_users_shards_stays_that_users(planted_ground, verb):
    place = Place(*planted_ground, 0)
    name, words = OUTPUTS[verb]
    out = place.outputs / name
    os.chown(place.outputs, ALICE, ALICE)
    place.outputs.chmod(0o755)
    out.touch()
    for path in (place.model, place.other, out):
        os.chown(path, ALICE, GROUP)
        path.chmod(0o640)
    done = place.run(words, out, "--force")
    assert done.returncode == 0, done
    made = os.lstat(out)
    assert (made.st_uid, made.st_gid, made.st_mode & 0o777) == (ALICE, GROUP, 0o640)


@pytest.mark.parametrize("ends", [signal.SIGCONT, signal.SIGINT], ids=["finished", "interrupted"])
def test_a_slice_stays_in_the_directory_that_it_has_opened(planted_ground, ends):
    """Mallory may write the directory above, and exchanges the directory while the slice is made."""
    place = Place(*planted_ground, 0)
    source, private = planted_ground[0] / "large.safetensors", planted_ground[1] / "private"
    archive_file.save_with_reference(source, {"t": archive_file.random_array("u1", (16 << 20,), 1)})
    private.mkdir(mode=0o700)
    before = os.stat(private).st_mtime_ns
    for attempt in range(20):
        made = planted_ground[1] / f"made{attempt}"
        made.mkdir()
        with subprocess.Popen([place.stfs, "slice", source, "t[::2]", "-o", made / "out.bin"], stderr=subprocess.DEVNULL) as tool:
            while not os.listdir(made) and tool.poll() is None:
                pass
            if tool.poll() is not None:
                assert tool.returncode == 0
                os.remove(made / "out.bin")  # the tmpfs is small
                continue
            tool.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, tool.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            is_early = not (made / "out.bin").exists()
            as_mallory('mv "$1" "$1.moved" && ln -s "$2" "$1"', made, private)
            if ends != signal.SIGCONT:
                tool.send_signal(ends)
            tool.send_signal(signal.SIGCONT)
        assert os.listdir(private) == [] and os.stat(private).st_mtime_ns == before
        left = os.listdir(f"{made}.moved")
        assert left == ["out.bin"] or (left == [] and tool.returncode != 0)
        # A slice may be too far to be stopped, or to be interrupted.
        if is_early and (left == ["out.bin"]) == (tool.returncode == 0) == (ends == signal.SIGCONT):
            return
        for name in left:
            os.remove(f"{made}.moved/{name}")
    pytest.fail("no slice was stopped in time")


def test_a_repack_stays_in_the_directory_that_it_has_opened(planted_ground):
    """Mallory may write the directory above. A stop at the first file of many gives him the time."""
    place = Place(*planted_ground, 0)
    source, private = planted_ground[1] / "many.safetensors", planted_ground[1] / "private"
    archive_file.save_with_reference(source, {str(at): archive_file.random_array("u1", (1,), at) for at in range(300)})
    private.mkdir(mode=0o700)
    made = place.outputs / "made"
    made.mkdir()
    before = os.stat(private).st_mtime_ns
    with subprocess.Popen([place.stfs, "repack", "--shard-size", "1", source, made / "s.safetensors.index.json"]) as repack:
        while not os.listdir(made):
            assert repack.poll() is None
        repack.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, repack.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        is_early = not (made / "s.safetensors.index.json").exists()
        as_mallory('mv "$1" "$1.moved" && ln -s "$2" "$1"', made, private)
        repack.send_signal(signal.SIGCONT)
    assert repack.returncode == 0
    assert os.listdir(private) == [] and os.stat(private).st_mtime_ns == before
    assert len(os.listdir(f"{made}.moved")) == 301
    if not is_early:
        pytest.skip("it was too fast to be stopped")


def test_a_repack_that_fails_takes_back_only_its_own_files(planted_ground):
    """It stops before its index. Mallory then gives the directory's path to a private one, with files of the shards' names."""
    place = Place(*planted_ground, 0)
    source, private = planted_ground[1] / "many.safetensors", planted_ground[1] / "private"
    archive_file.save_with_reference(source, {str(at): archive_file.random_array("u1", (1,), at) for at in range(300)})
    private.mkdir(mode=0o700)
    shards = [f"s-{at:05}-of-00300.safetensors" for at in range(1, 301)]
    for name in shards:
        (private / name).write_text("the victim's")
    made = place.outputs / "made"
    made.mkdir()
    index = "s.safetensors.index.json"
    with subprocess.Popen([place.stfs, "repack", "--shard-size", "1", source, made / index], stderr=subprocess.PIPE,
                          text=True) as repack:
        while not os.listdir(made):
            assert repack.poll() is None
        repack.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, repack.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if (made / index).exists():
            repack.kill()
            pytest.skip("it was too fast to be stopped")
        (made / index).write_text("another program's")
        as_mallory('mv "$1" "$1.moved" && ln -s "$2" "$1"', made, private)
        repack.send_signal(signal.SIGCONT)
        told = repack.stderr.read()
    assert repack.returncode == 1 and f"{made / index}: " in told, told
    assert os.listdir(f"{made}.moved") == [index]
    assert sorted(os.listdir(private)) == shards
    assert all((private / name).read_text() == "the victim's" for name in shards)


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_version_is_not_published_through_a_planted_link(planted_ground, victim):
    place = Place(*planted_ground, victim)
    private = planted_ground[1] / "private"
    private.mkdir()
    leftover = private / "model-00001-of-00002.safetensors"
    leftover.write_text("the victim's")
    for path in (private, leftover):
        os.chown(path, victim, victim)
    private.chmod(0o700)
    as_mallory('ln -s "$1" "$2"', private, place.outputs / "weight_v000002")
    done = is_run_by(victim, victim, [place.stfs, "diff", str(place.model), str(place.other), "--encoding", "xor",
                                      "--version", "2", "--out", str(place.outputs)])
    assert done.returncode == 1 and "weight_v000002" in done.stderr, done
    assert os.listdir(private) == [leftover.name] and leftover.read_text() == "the victim's"


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_version_is_not_published_in_a_planted_directory(planted_ground, victim):
    place = Place(*planted_ground, victim)
    planted = place.outputs / "weight_v000002"
    as_mallory('mkdir -m 0777 "$1"', planted)
    publish = [place.stfs, "diff", str(place.model), str(place.other), "--encoding", "xor", "--version", "2", "--out",
               str(place.outputs)]
    done = is_run_by(victim, victim, publish)
    assert done.returncode == 1 and f"{planted}: belongs to user {MALLORY}" in done.stderr, done
    assert os.listdir(planted) == []
    # An unfinished version of a publisher who owns the published directory is finished.
    os.chown(place.outputs, MALLORY, MALLORY)
    done = is_run_by(victim, victim, publish)
    assert done.returncode == 0, done


def test_a_published_file_takes_no_mode_from_a_planted_link(planted_ground):
    """The directory of the model is Mallory's to write: `run` names a set-id program."""
    place = Place(*planted_ground, 0)
    version = planted_ground[1] / "published/weight_v000001"
    version.mkdir(parents=True)
    archive_file.save_with_reference(version / "model.safetensors", TENSORS)
    (version / "run").write_text("#!/bin/sh\n")
    model = planted_ground[1] / "model"
    model.mkdir()
    model.chmod(0o777)
    as_mallory('ln -s "$1" "$2"', place.program, model / "run")
    refused = place.run(["pull", str(model)], None, str(version.parent))
    assert refused.returncode == 1 and f"{model / 'run'}: version" in refused.stderr, refused
    os.unlink(model / "run")
    done = place.run(["pull", str(model)], None, str(version.parent))
    assert done.returncode == 0, done
    assert not (model / "run").is_symlink() and (model / "run").read_text() == "#!/bin/sh\n"
    assert os.lstat(model / "run").st_mode & 0o7111 == 0 and place.program.read_text() == "the victim's"
    assert os.stat(place.program).st_mode & 0o7777 == 0o6755 and MALLORY != os.lstat(model / "run").st_uid


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_delta_of_another_user_does_not_choose_its_base(planted_ground, victim):
    place = Place(*planted_ground, victim)
    place.model.chmod(0o600)
    before = place.model.read_bytes()
    out = planted_ground[1] / "x.delta.safetensors"
    assert place.run(OUTPUTS["diff"][1], out).returncode == 0
    os.chown(out, MALLORY, MALLORY)
    out.chmod(0o644)
    refused = place.run(["commit", "{out}"], out)
    assert refused.returncode == 1 and f"belongs to user {MALLORY}" in refused.stderr and "--base" in refused.stderr, refused
    assert place.model.read_bytes() == before
    # Another user's link beside the victim's delta is also not taken as the base.
    os.chown(out, victim, victim)
    moved = place.outputs / out.name
    shutil.copy2(out, moved)
    os.chown(moved, victim, victim)
    as_mallory('ln -s "$1" "$2"', place.model, place.outputs / place.model.name)
    refused = place.run(["commit", "{out}"], moved)
    assert refused.returncode == 1 and f"belongs to user {MALLORY}" in refused.stderr, refused
    assert place.model.read_bytes() == before
    done = place.run(["commit", "{out}", "--base", "{model}"], moved)
    assert done.returncode == 0, done


def let_list(delta):
    delta.chmod(0o640)
    let_user(MALLORY, 6, delta)


DELTA_WRITERS = {"all users": lambda delta: delta.chmod(0o666), "its group": lambda delta: delta.chmod(0o664), "a list": let_list}


@pytest.mark.parametrize("let", DELTA_WRITERS.values(), ids=DELTA_WRITERS.keys())
def test_who_may_write_a_delta_does_not_choose_a_base_in_another_directory(planted_ground, let):
    """The attribute names an archive that Mallory may only read. The delta fits that archive."""
    directory, ground = planted_ground
    place = Place(directory, ground, 0)
    before = place.model.read_bytes()
    delta = directory / "x.delta.safetensors"
    assert place.run(OUTPUTS["diff"][1], delta).returncode == 0
    os.setxattr(delta, "user.safetensorsfs.base_path", os.fsencode(place.model))
    os.chown(delta, 0, MALLORY)
    let(delta)
    as_mallory('cp "$1" "$2" && cat "$2" > "$1"', delta, place.outputs / "copy")
    for more in ((), ("--into", str(place.outputs / "merged.safetensors"))):
        refused = place.run(["commit", "{out}", *more], delta)
        assert refused.returncode == 1 and "lets users write it" in refused.stderr and "--base" in refused.stderr, refused
    assert place.model.read_bytes() == before
    done = place.run(["commit", "{out}", "--base", "{model}"], delta)
    assert done.returncode == 0, done
    assert place.model.read_bytes() != before


@pytest.mark.parametrize("where", ["beside", "elsewhere"])
def test_a_delta_of_a_group_finds_its_base(planted_ground, where):
    """With umask 002, the group of a delta may write it. A base elsewhere has the same group and mode."""
    directory, ground = planted_ground
    place = Place(directory, ground, ALICE)
    before = place.model.read_bytes()
    delta = (ground if where == "beside" else directory) / "x.delta.safetensors"
    made = place.run(OUTPUTS["diff"][1], ground / "made")
    assert made.returncode == 0, made
    shutil.move(ground / "made", delta)
    if where == "elsewhere":
        os.setxattr(delta, "user.safetensorsfs.base_path", os.fsencode(place.model))
        place.model.chmod(0o664)
    os.chown(delta, ALICE, ALICE)
    delta.chmod(0o664)
    done = place.run(["commit", "{out}"], delta)
    assert done.returncode == 0, done
    assert place.model.read_bytes() != before


def test_an_index_and_links_of_another_user_do_not_choose_the_base(planted_ground):
    """The delta is the victim's. Mallory's index beside it names links to the victim's shards."""
    place = Place(*planted_ground, ALICE)
    base, other = planted_ground[1] / "base", planted_ground[1] / "new"
    save(base, TENSORS, 2)
    save(other, OTHER, 2)
    for path in [base, other, *base.iterdir(), *other.iterdir()]:
        os.chown(path, ALICE, ALICE)
    shards = sorted(base.glob("*.safetensors"))
    before = [path.read_bytes() for path in shards]
    delta = planted_ground[1] / "x.delta.safetensors"
    made = place.run(["diff", str(base), str(other), "--out", "{out}"], delta)
    assert made.returncode == 0, made
    moved = place.outputs / delta.name
    shutil.copy2(delta, moved)
    os.chown(moved, ALICE, ALICE)
    as_mallory('cat "$1" > "$2"', base / INDEX, place.outputs / INDEX)
    for path in shards:
        as_mallory('ln -s "$1" "$2"', path, place.outputs / path.name)
    refused = place.run(["commit", "{out}"], moved)
    assert refused.returncode == 1 and f"belongs to user {MALLORY}" in refused.stderr and "--base" in refused.stderr, refused
    assert [path.read_bytes() for path in shards] == before
