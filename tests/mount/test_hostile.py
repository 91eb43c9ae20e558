# Bad archives through the mounted path: each is refused with its file and reason, or shows right bytes.
import errno
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors
from archive_file import write_bytes_tensors
from mounted import BUILD, PATIENCE, REPOSITORY, SANITIZER_REPORT, Mount, MountFailed

pytestmark = pytest.mark.sequential

SUPPORT = REPOSITORY / "tests" / "support"


def true_name(path, known):
    """The tensor's name. One of more than 64 KiB does not fit an attribute: it is then the known one that
    begins like the file's name."""
    try:
        return os.getxattr(path, "user.safetensors.name").decode()
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        (name,) = [name for name in known if len(name) > 65536 and name.startswith(os.path.basename(path)[:50])]
        return name


def shown_bytes(mount, known=()):
    """{tensor's name: content} of everything below a mount."""
    return {true_name(os.path.join(where, name), known): Path(where, name).read_bytes()
            for where, _, names in os.walk(mount.path) for name in names}


def reference_bytes(path):
    """{tensor's name: content} by the reference library, or None where it refuses the file."""
    try:
        return {name: bytes(entry["data"]) for name, entry in
                safetensors.deserialize(Path(path).read_bytes())}
    except Exception:  # it raises its own type for each malformation
        return None


def try_mount(path, directory, options="", known=()):
    """(content or None, text): mounts, reads everything, unmounts."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / "mnt"
    target.mkdir(exist_ok=True)
    try:
        mount = Mount(path, target, directory / "log", options)
    except MountFailed as failure:
        assert not SANITIZER_REPORT.search(failure.log), failure.log
        assert failure.status == 1, f"status {failure.status}: {failure.log}"
        assert os.path.basename(str(path)) in failure.log, f"the file is not named: {failure.log}"
        return None, failure.log
    try:
        return shown_bytes(mount, known), ""
    finally:
        wrong = mount.finish()
        assert wrong is None, wrong


# ---- the corpus of tests/support ----

@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    maker = SUPPORT / "corpus.py"
    if not maker.exists():
        pytest.skip("tests/support/corpus.py is not there")
    directory = tmp_path_factory.mktemp("corpus")
    done = subprocess.run([sys.executable, maker, directory], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return directory


def test_each_file_of_the_corpus_gets_its_verdict(corpus, tmp_path):
    """Refused with a message that names the file, or shown with the reference's bytes. Which check
    refuses it is compared in tests/core; here it is a sentence for a person."""
    entries = json.loads((corpus / "manifest.json").read_text())
    assert len(entries) > 100

    def check(numbered):
        number, entry = numbered
        path = corpus / entry["file"]
        shown, text = try_mount(path, tmp_path / str(number), "layout=tree" if number % 2 else "", entry["tensors"])
        if entry["ours"] != "ok":
            if shown is not None:
                return f"{path.name}: mounted, though it is due {entry['ours']} ({entry['why']})"
            said = text.split(path.name, 1)[1].strip(": \n")
            return None if len(said) > 10 else f"{path.name}: the reason is missing: {text}"
        if shown is None:
            return f"{path.name}: refused ({entry['why']}): {text}"
        due = reference_bytes(path)
        if set(shown) != set(entry["tensors"]):
            return f"{path.name}: shows {sorted(shown)}, not {sorted(entry['tensors'])}"
        return None if due is None or shown == due else f"{path.name}: other bytes than the reference's"

    with ThreadPoolExecutor(3) as pool:
        wrong = [problem for problem in pool.map(check, enumerate(entries)) if problem]
    assert wrong == [], "\n".join(wrong)


# ---- effects of a hostile archive outside of itself ----

def test_a_deep_name_in_the_tree_layout_is_no_danger(tmp_path, mounts):
    name = ".".join("d" for _ in range(3000))
    mount = mounts(write_bytes_tensors(tmp_path / "deep.safetensors", {name: b"deep", "x": b"x"}), "layout=tree")
    assert (mount / "x").read_bytes() == b"x"
    found = subprocess.run(["find", mount.path, "-type", "f"], capture_output=True, timeout=60 * PATIENCE)
    assert found.returncode == 0
    assert len(found.stdout.splitlines()) == 2


def test_a_shape_of_many_dimensions_fits_or_is_refused_as_an_attribute(tmp_path, mounts):
    from archive_file import write_raw
    mount = mounts(write_raw(tmp_path / "rank.safetensors", [("t", "U8", [1] * 5000, b"x"),
                                                            ("u", "U8", [1] * 40000, b"y")]))
    assert mount.attribute("t", "shape") == "[" + ",".join(["1"] * 5000) + "]"
    with pytest.raises(OSError) as raised:
        mount.attribute("u", "shape")  # 80,001 bytes: more than an attribute may have
    assert raised.value.errno == errno.E2BIG
    assert (mount / "u").read_bytes() == b"y"
    assert "user.safetensors.shape" in os.listxattr(mount / "t")


# ESC, the same as one character, CSI as one character, marks of direction, an end of line, an end of paragraph.
COMMANDS = ("\x1b", "\x7f", "\x85", "\x9b", "\u061c", "\u200e", "\u202e", "\u2066", "\u2028", "\u2029")


def test_no_name_of_an_archive_reaches_a_terminal_as_a_command(tmp_path, mounts):
    name = "w" + "".join(COMMANDS) + "重み"
    path = tmp_path / f"m{''.join(COMMANDS)}.safetensors"
    write_bytes_tensors(path, {name: b"abc"}, {name: name})
    mount = mounts(path)
    (file,) = (entry for entry in os.listdir(mount.path))
    with pytest.raises(OSError):
        (mount / file).write_bytes(b"too long")
    stfs = BUILD / "stfs"
    shown = {"log": mount.log(), **{view: (mount / ".safetensors" / view).read_text() for view in
                                    ("log", "stats.json", "metadata.json")}}
    for words in (["ls"], ["info"], ["verify"], ["ls", "--json"], ["info", "--json"], ["cat", "-", "none"], ["recover"]):
        at = words.index("-") if "-" in words else len(words)
        done = subprocess.run([stfs, *words[:at], path, *words[at + 1:]], capture_output=True, text=True)
        shown[" ".join(words)] = done.stdout + done.stderr
    for place, text in shown.items():
        assert text and not [hex(ord(one)) for one in COMMANDS if one in text], place
    # JSON has the same text for its readers.
    assert json.loads(shown["metadata.json"]) == {name: name}
    assert json.loads(shown["ls --json"])["tensors"][0]["name"] == name
