# A user who may write the directory of another user's archive mounts a FUSE file system where a mount or a tool keeps its own
# files. The kernel sends every request there to the FUSE daemon of that user, and waits: the daemon never answers.
import contextlib
import errno
import os
import subprocess

import pytest
from archive_file import random_bytes, write_bytes_tensors
from mounted import BUILD, errno_of, eventually, mount_entry
from test_journal_users import ALICE, Shared, is_run_by
from test_planted_files import MALLORY, VICTIMS, as_mallory
from test_planted_syncs import Host, check_refused

TOLD = f"another file system is mounted there (fuse) by user {MALLORY}"

pytestmark = pytest.mark.needs_root


@contextlib.contextmanager
def silent_mount(path, *more, user=MALLORY, of_file=False):
    """Mounts as fusermount3 does for Mallory: on a directory, on a file, or on a copy of one. With allow_other requests of other
    users also wait."""
    as_mallory({True: 'touch "$1"', False: 'mkdir "$1"'}.get(of_file, 'cp "$2" "$1.new" && mv -f "$1.new" "$1"'), path, of_file)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error}")
    try:
        mode = "100000" if of_file else "40000"
        options = ",".join((f"fd={device},rootmode={mode},user_id={user},group_id={user}", *more))
        made = subprocess.run(["mount", "-i", "-n", "-t", "fuse", "-o", options, "none", path], pass_fds=[device],
                              capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip(f"no mount of fuse: {made.stderr}")
        try:
            yield
        finally:
            if mount_entry(path) is not None:
                subprocess.run(["umount", "-l", path], check=True)
    finally:
        os.close(device)  # ends what waits for it
        (os.unlink if of_file else os.rmdir)(path)


options_of_mallory = pytest.mark.parametrize("more", [(), ("allow_other",)], ids=["for Mallory", "allow_other"])


@pytest.fixture
def shared(planted_ground):
    """Alice's archive, in a directory of hers that everybody may write."""
    directory, ground = planted_ground
    shared = Shared(directory, ground / "archives")
    shared.give(0o644, 0o777, ALICE)
    return shared


@options_of_mallory
def test_a_mount_on_the_scratch_directory_is_named(shared, mounts, more):
    scratch = os.path.join(shared.archives, ".model.safetensors.scratch")
    early = mounts(shared.path)
    with silent_mount(scratch, *more):
        late = mounts(shared.path)
        for mount in (early, late):
            assert (mount / "a").read_bytes() == shared.data_of("a")
            assert errno_of(open, mount / "new", "w") == errno.EACCES
            assert f"{scratch}: {TOLD}" in mount.log()
            assert "unmount it with `umount -l`" in mount.log()
        for victim in VICTIMS.values():
            listed = is_run_by(victim, victim, [shared.stfs, "info", shared.path], timeout=60)
            assert listed.returncode == 0, listed
            assert shared.put(victim, victim, "c", random_bytes(20_000, victim)).returncode == 0
    for mount in (early, late):
        (mount / f"new{mount.path.name}").write_text("scratch")
        assert mount.unmount() == 0


@options_of_mallory
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_mount_on_the_place_of_pulls_is_named(planted_ground, victim, more):
    host = Host(*planted_ground, victim)
    with silent_mount(host.model / ".weight_sync", *more):
        check_refused(host, host.pull(), f".weight_sync: {TOLD}")
    done = host.pull()
    assert done.returncode == 0, done


# Generous: a test fails here only if something waits for Mallory's daemon.
FOREVER = 100
NAMES = ("other.safetensors", "model.safetensors.index.json", "config.json")
kinds_of_mount = pytest.mark.parametrize("of_file", [False, True], ids=["a directory", "a file"])


def runs(victim, *command):
    return is_run_by(victim, victim, list(map(str, command)), timeout=FOREVER)


@pytest.fixture
def open_mounts(shared, mounts):
    """Mounts of root's that other users enter, at places that they reach."""
    def make(source, options="allow_other"):
        point = os.path.join(shared.directory, f"mount{len(os.listdir(shared.directory))}")
        os.mkdir(point)
        return mounts(source, options, path=point)

    return make


def save_new_model(shared, mount, name):
    """As Alice, in the directory that is mounted."""
    done = runs(ALICE, "cp", shared.path, os.path.join(shared.archives, f"{name}.safetensors"))
    assert done.returncode == 0, done
    assert eventually(lambda: (mount / name / "a").exists())


@kinds_of_mount
@pytest.mark.parametrize("name", NAMES)
def test_a_mount_in_a_directory_of_models_holds_up_nobody(shared, open_mounts, name, of_file):
    place = os.path.join(shared.archives, name)
    early = open_mounts(shared.archives)
    with silent_mount(place, "allow_other", of_file=of_file):
        late = open_mounts(shared.archives)
        for mount in (early, late):
            shown = runs(ALICE, "ls", mount.path)
            assert shown.returncode == 0 and "model" in shown.stdout.split(), shown
            assert name not in shown.stdout.split()
            assert runs(ALICE, "stat", mount / name).returncode == 1
            assert runs(ALICE, "cmp", mount / "model" / "a", early / "model" / "a").returncode == 0
            assert runs(ALICE, "sh", "-c", f"head -c 20000 /dev/zero > {mount / 'model' / 'b'}").returncode == 0
            save_new_model(shared, mount, f"new-{mount.path.name}")
        for mount in (early, late):
            log = mount.log()
            assert log.count(f"{name}: another file system is mounted there") + log.count("is a mount of another") >= 1, log
    for mount in (early, late):
        assert mount.unmount() == 0


@kinds_of_mount
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_mount_beside_an_archive_holds_up_no_tool(shared, victim, of_file):
    with contextlib.ExitStack() as mounted:
        for name in NAMES:
            mounted.enter_context(silent_mount(os.path.join(shared.archives, name), "allow_other", of_file=of_file))
        for named in (shared.archives, shared.path):
            for words in (["info"], ["ls"], ["verify"], ["recover"]):
                done = runs(victim, shared.stfs, *words, named)
                assert done.returncode == 0, done
        for words in (["info"], ["ls"], ["recover"], ["verify"]):
            done = runs(victim, shared.stfs, *words, os.path.join(shared.archives, "other.safetensors"))
            assert done.returncode == 1 and f"other.safetensors: {TOLD}" in done.stderr, done
        for name in NAMES:  # nothing is written there
            done = runs(victim, shared.stfs, "repack", "--force", shared.path, os.path.join(shared.archives, name))
            assert done.returncode == 1, done
        os.rename(shared.path, shared.path + ".old")
        done = runs(victim, shared.stfs, "info", shared.archives)
        assert done.returncode == 1 and f"other.safetensors: {TOLD}" in done.stderr, done


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_link_into_a_mount_holds_up_nobody(shared, open_mounts, victim):
    place = os.path.join(shared.archives, "sub")
    with silent_mount(place, "allow_other"):
        links = {name: os.path.join(shared.archives, name) for name in NAMES}
        for link in links.values():
            as_mallory('ln -s sub/deeper "$1"', link)
        done = runs(victim, shared.stfs, "info", shared.archives)
        assert done.returncode == 0, done
        done = runs(victim, shared.stfs, "info", links["other.safetensors"])
        assert f"other.safetensors: {TOLD}" in done.stderr, done
        mount = open_mounts(shared.archives)
        assert runs(victim, "ls", mount.path).stdout.split() == ["model"]
        save_new_model(shared, mount, "new")
        assert mount.unmount() == 0
        for link in links.values():
            os.unlink(link)


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_link_to_a_mount_holds_up_no_source_of_a_tool(shared, victim):
    place = os.path.join(shared.archives, "sub")
    with silent_mount(place, "allow_other"):
        links = {name: os.path.join(shared.archives, name) for name in ("l.safetensors", "l.bin", "l.npy", "l.txt")}
        for link in links.values():
            as_mallory('ln -s sub "$1"', link)
        for words in (["apply", shared.path, links["l.safetensors"]],
                      ["put", shared.path, "a", links["l.safetensors"]],
                      ["put", shared.path, "a", links["l.bin"]],
                      ["put", shared.path, "a", links["l.npy"]],
                      ["upload", shared.path, "--device", f"@{links['l.txt']}"]):
            done = runs(victim, shared.stfs, *words)
            assert done.returncode == 1 and TOLD in done.stderr, done
        for link in links.values():
            os.unlink(link)


BEHIND = "not entered"


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_link_to_a_directory_in_a_mount_holds_up_no_output_and_no_pull(shared, victim):
    place = os.path.join(shared.archives, "sub")
    link, file = (os.path.join(shared.archives, name) for name in ("ldir", "l.safetensors"))
    published = os.path.join(shared.archives, "published")
    new = os.path.join(shared.archives, "new")
    with silent_mount(place, "allow_other"):
        as_mallory('mkdir "$1" && ln -s sub/in "$2" && ln -s sub/x.safetensors "$3"', published, link, file)
        for words in (["slice", shared.path, "a[0]", "-o", f"{link}/z"],
                      ["info", "--svg", f"{link}/z", shared.path],
                      ["repack", shared.path, f"{link}/z.safetensors"],
                      ["diff", "--out", f"{link}/z", shared.path, shared.path],
                      ["serve", "--device", "cpu", "--socket", f"{link}/s", shared.path],
                      ["pull", file, published],
                      ["pull", "--status", file, published],
                      ["pull", link, published],
                      ["pull", new, link]):
            done = runs(victim, shared.stfs, *words)
            assert done.returncode == 1 and BEHIND in done.stderr, (words, done)
            assert not os.path.exists(new)
        for name in (link, file):
            os.unlink(name)
        os.rmdir(published)


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_link_into_a_mount_holds_up_no_mount_point_and_no_client(shared, victim):
    place = os.path.join(shared.archives, "sub")
    link, socket = (os.path.join(shared.archives, name) for name in ("mnt", "sock"))
    with silent_mount(place, "allow_other"):
        as_mallory('ln -s sub/mnt "$1" && ln -s sub/s "$2"', link, socket)
        for words in (["umount", link], ["top", "--once", link], ["serve", "--status", socket]):
            done = runs(victim, shared.stfs, *words)
            why = "another user's link is not followed" if words[0] == "umount" else BEHIND
            assert done.returncode == 1 and why in done.stderr, (words, done)
        if victim == 0:
            done = runs(0, BUILD / "safetensorsfs", shared.path, link)
            assert done.returncode == 1 and BEHIND in done.stderr, done
        for name in (link, socket):
            os.unlink(name)


@pytest.mark.parametrize("of_link", [False, True], ids=["a mount", "a link into one"])
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_pull_that_follows_waits_for_no_mount_on_a_version(planted_ground, victim, of_link):
    host = Host(*planted_ground, victim)
    assert host.pull().returncode == 0
    version = host.published / "weight_v000009"
    place = host.published / "sub" if of_link else version
    with silent_mount(place, "allow_other", "default_permissions"):
        if of_link:
            as_mallory('ln -s sub "$1"', version)
        command = ["setpriv", f"--reuid={victim}", f"--regid={victim}", "--clear-groups", "--", host.stfs, "pull", "--follow"]
        with subprocess.Popen([*command, host.model, host.published], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
            try:
                assert eventually(lambda: following.poll() is not None or "inotify" in descriptors_of(following.pid))
                following.terminate()
                following.communicate(timeout=FOREVER)
            finally:
                following.kill()
        if of_link:
            version.unlink()


def descriptors_of(pid):
    """The targets of its descriptors, without those that close."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return " ".join(found)


def test_a_mount_on_the_model_itself_holds_up_no_mount_of_it(shared, mounts):
    """Where its group may write it, a member may mount there."""
    mount = mounts(shared.path)
    # A mount follows another archive at its path, and gives EIO while no archive is there: so the copy replaces the archive.
    os.link(shared.path, shared.path + ".old")
    with silent_mount(shared.path, "allow_other", of_file=shared.path + ".old"):
        assert runs(0, "cmp", mount / "a", mount / "a").returncode == 0
        done = runs(0, shared.stfs, "info", shared.path)
        assert done.returncode == 1 and TOLD in done.stderr, done
        for victim in VICTIMS.values():
            assert runs(victim, shared.stfs, "put", shared.path, "a", "/dev/null").returncode == 1
        assert eventually(lambda: TOLD in mount.log()), mount.log()
    assert mount.unmount() == 0


@pytest.mark.parametrize("target", ["an archive", "a directory"])
def test_a_mount_of_roots_is_entered(shared, mounts, tmp_path, target):
    """Containers mount single files, and disks."""
    other = tmp_path / "disk"
    other.mkdir()
    subprocess.run(["cp", shared.path, other / "bound.safetensors"], check=True)
    (other / "notes").write_text("bound")
    place = os.path.join(shared.archives, "bound.safetensors")
    bound, at = (other / "bound.safetensors", place) if target == "an archive" else (other, shared.archives)
    if target == "an archive":
        open(place, "w").close()
    subprocess.run(["mount", "--bind", bound, at], check=True)
    try:
        mount = mounts(shared.archives)
        assert (mount / "bound" / "a").read_bytes() == shared.data_of("a")
        done = runs(0, shared.stfs, "ls", place)
        assert done.returncode == 0, done
        mount.unmount()
    finally:
        subprocess.run(["umount", at], check=True)


def test_a_fuse_mount_of_ones_own_is_entered(shared, mounts, tmp_path):
    """A safetensorsfs mount, here of root's, shows an archive as a file; a link of root's leads to it."""
    inner = mounts(shared.path, "allow_other")
    models = tmp_path / "models"
    models.mkdir()
    (models / "view.safetensors").symlink_to(inner / ".safetensors" / "archive.safetensors")
    done = runs(0, shared.stfs, "ls", models / "view.safetensors")
    assert done.returncode == 0, done


def test_a_mount_that_a_delta_names_as_the_place_of_its_base_holds_up_no_commit(planted_ground):
    directory, ground = planted_ground
    own = ground / "own"
    own.mkdir()
    os.chown(own, MALLORY, MALLORY)
    stfs, silent, delta = BUILD / "stfs", own / "silent", os.path.join(directory, "delta.safetensors")
    for name, data in (("base", b"old"), ("tuned", b"new")):
        write_bytes_tensors(ground / f"{name}.safetensors", {"t": data})
    made = subprocess.run([stfs, "diff", ground / "base.safetensors", ground / "tuned.safetensors", "--out", delta])
    assert made.returncode == 0
    os.setxattr(delta, "user.safetensorsfs.base_path", os.fsencode(silent / "base.safetensors"))
    os.chown(delta, MALLORY, MALLORY)
    with silent_mount(silent, "allow_other"):
        for more in ((), ("-n",)):
            done = subprocess.run([stfs, "commit", delta, *more], capture_output=True, text=True, timeout=60)
            assert done.returncode == 1, done
