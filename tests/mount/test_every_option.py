# Runs every verb of stfs with every option that its --help lists, in each spelling, and with every kind of target.
# The library that parses command lines differs from system to system; what stfs understands must not.
import os
import re
import shutil
import subprocess

import archive_file
import mounted
import numpy as np
import pytest
from hub_server import hub_served
from lease_client import Server
from sharded_model import ShardedModel
from web_server import needs_libcurl

pytestmark = [pytest.mark.once, pytest.mark.library]

STFS = mounted.BUILD / "stfs"
W = np.arange(12, dtype="f4").reshape(3, 4)
TENSORS = {"w": W, "b": W + 1}

# Commands with long options and a blank before each value, and a pattern for their output.
COMMANDS = [
    ("ls m.safetensors", r"b +F32 +\[3,4\] +48 B\n"),
    ("ls --sort name m.safetensors", r"^b .*\nw "),
    ("ls --sort name --reverse m.safetensors", r"^w .*\nb "),
    ("ls --bytes m.safetensors *", r" 48\n"),
    ("ls --names m.safetensors w", r"^w\n$"),
    ("ls --json m.safetensors b w", r'"dtype": ?"F32"'),
    ("info m.safetensors", r"tensors +2\n"),
    ("info --bytes m.safetensors", r"F32.* 96\b"),
    ("info --json m.safetensors", r'"tensors": ?2'),
    ("info --plot --svg out.svg --force m.safetensors", r"bytes by layer and dtype"),
    ("cat --force m.safetensors w", "^" + re.escape(W.tobytes().decode("latin-1")) + "$"),
    ("slice --force --raw --output out.npy m.safetensors w[0]", r"out\.npy: w\[0\]: F32 \[4\], 16 B"),
    ("slice --npy --output - m.safetensors w[1,:2]", r"^.NUMPY"),
    ("slice --npy --force m.safetensors w[...]", r"^.NUMPY"),
    ("slice --json m.safetensors b[::-1]", r'"shape": \[\s*3,\s*4\s*\]'),
    ("verify m.safetensors w b", r"w +F32 +xxh128:[0-9a-f]{32} "),
    ("verify --force --record out.json m.safetensors", r"^read 2 tensors, 96 B: recorded in out\.json"),
    ("verify --against sums.json --threads 2 m.safetensors", r"^read 2 tensors, 96 B: as recorded in sums\.json"),
    ("verify --finite --json m.safetensors", r'"problems": ?\[\]'),
    ("verify --plot --svg out.svg --force m.safetensors", r"values by magnitude"),
    ("diff m.safetensors d.safetensors", r"^compared 2 tensors, 96 B: equal\n$"),
    ("diff --brief --threads 2 m.safetensors d.safetensors w", r"^compared 1 tensor, 48 B: equal\n$"),
    ("diff --json m.safetensors d.safetensors", r'"equal": ?true'),
    ("diff --plot --svg out.svg --force m.safetensors d.safetensors", r"relative change by layer"),
    ("diff --out new.safetensors --force m.safetensors d.safetensors", r"wrote new\.safetensors: 0 tensors, 0 B\n$"),
    ("diff --encoding overwrite --version 42 --base 7 --checksum adler32 --out published m.safetensors d.safetensors",
     r"^published published/weight_v000042: 0 of 2 tensors changed, 0 B of 96 B\n$"),
    ("diff --since 0 --encoding xor --version 43 --out published m.safetensors mnt",
     r"^published published/weight_v000043: 0 of 2 tensors changed, 0 B of 96 B\ngeneration \d+\n$"),
    ("put m.safetensors w raw", r"^changed w: F32 \[3,4\], 48 B"),
    ("put --raw --durability process m.safetensors w raw.npy", r"^changed w"),
    ("put --from-tensor b --wait 5 m.safetensors w d.safetensors", r"^changed w"),
    ("put --nolock --json m.safetensors w raw", r'"size_bytes": ?48'),
    ("put --dry-run m.safetensors w raw", r"^would change w: F32 \[3,4\], 48 B"),
    ("put --create --keep-space --dtype F32 --shape 3,4 m.safetensors w raw", r"^changed w: F32 \[3,4\], 48 B"),
    ("rm --dry-run m.safetensors b", r"^b\nwould have removed 1 tensor, 48 B\n$"),
    ("rm --keep-space --nolock --wait 5 --json --dry-run m.safetensors b", r'"removed": ?\['),
    ("mv --dry-run m.safetensors b c", r"^b -> c\nwould have renamed 1 tensor\n$"),
    ("mv --keep-space --nolock --wait 0 --json m.safetensors w w", r'"to": ?"w"'),
    ("set --metadata k=v m.safetensors", r"^(changed|nothing to change in) "),
    ("set --unset k --dry-run m.safetensors", r"^would have changed "),
    ("set --keep-space --dtype I32 --shape 12 --nolock --wait 1 --json --dry-run m.safetensors w", r'"changed": ?false'),
    ("apply m.safetensors d.safetensors", r"^changed 2 tensors of .*, 96 B"),
    ("apply --dry-run m.safetensors d.safetensors", r"would change 2 tensors of .*, 96 B"),
    ("apply --durability power --nolock --wait 0 --json m.safetensors d.safetensors", r'"tensors": ?\['),
    ("apply --keep-space m.safetensors d.safetensors", r"^changed 2 tensors of .*, 96 B"),
    ("apply --threads 1 host published/weight_v000001", r"^(version 000001: changed 2 tensors of host, 96 B|host has version 000001 already)\n$"),
    ("pull host published", r"^(version 000001: changed 2 tensors of host, 96 B, in .*\n)?host has version 000001\n$"),
    ("pull --to 0 --threads 1 --durability process --nolock --wait 0 new published", r"^(version 000000: copied all files to new, in .*\n)?new has version 000000\n$"),
    ("pull --follow --interval 1 --to 1 --exec ./hook host published", r"^(version 000001: .*\nhook 000001 host\n)?$"),
    ("pull --json host published", r'"version": ?"000001"'),
    ("pull --status host published", r"^version +(none yet|000001, for .*)\nnewest +000001\nmissing +(1 version: 000001|none)\nupdate +none under way\n$"),
    ("commit --keep-space delta.safetensors --nolock --wait 0", r"^nothing to change in .*m\.safetensors\n"),
    ("commit --dry-run --base m.safetensors delta.safetensors", r"^nothing to change in .*m\.safetensors\n$"),
    ("commit --json --into new.safetensors --force delta.safetensors", r'"written": ?true'),
    ("compact d.safetensors", r"nothing to free, the archive is compact\n$"),
    ("compact --dry-run --nolock --wait 0 m.safetensors", r"nothing to free|needs up to "),
    ("compact --json d.safetensors", r'"steps": ?0'),
    ("repack m.safetensors new.safetensors --force", r"^wrote new\.safetensors: 2 tensors, 96 B\n$"),
    ("repack --keep w --keep b --drop b --dtype w=F16 --json --force m.safetensors new.safetensors", r'"left_out": ?1'),
    ("repack --order name --align 64K --slack 1K --threads 2 --dry-run m.safetensors unwritten.safetensors", r"^b .*\nw .*\nwould write "),
    ("repack --delta delta.safetensors --force m.safetensors new.safetensors", r"^wrote new\.safetensors: 2 tensors, 96 B\n$"),
    ("repack --shard-size 48 --force m.safetensors new.safetensors.index.json", r" in 2 shards\n$"),
    ("recover m.safetensors", r"no journal, nothing to recover"),
    ("recover --dry-run --force m.safetensors", r"no journal, nothing to recover"),
    ("recover --json m.safetensors", r'"journals": ?\[\]'),
    ("upload --device cpu --verify m.safetensors", r"cpu"),
    ("upload --device @rules --dry-run m.safetensors", r"cpu: 1 tensors?, 48 B of "),
    ("upload --device cpu --select w --select b[0] --dtype bf16 --cast --json m.safetensors", r'"BF16"'),
    ("devices", r"^device .*\ncpu "),
    ("devices --json", r'"why_no_cuda"'),
    ("devices --names", r"^cpu\b"),
    ("sample --force --layers 1 --hidden 8 --seed 7 new.safetensors", r"wrote new\.safetensors: "),
    ("sample --odd --force new.safetensors", r"wrote new\.safetensors: "),
    ("repack --dequantize --dtype F16 --force m.safetensors new.safetensors", r"^wrote new\.safetensors: "),
    ("repack --cast --dtype F16 --force m.safetensors new.safetensors", r"^wrote new\.safetensors: "),
    ("sample --force --size 1M --json new.safetensors", r'"size_bytes"'),
    ("serve --status socket", r"^socket .*\nprocess "),
    ("serve --status socket --json", r'"generation":1,'),
    ("fetch --dry-run --json hf://org/model", r'"tensors": ?2'),
    ("fetch --pin hf://org/model w", r"^1 tensor, 48 B: "),
    ("cache --json", r'"kept_bytes": ?\d'),
    ("cache --limit none --unpin hf://org/model --prove hf://org/model --drop hf://org/model", r"proven\ndropped "),
]
# Targets with the same tensors. The mount's file archive.safetensors can only be read.
TARGETS = ["sharded", "sharded/model.safetensors.index.json", "one", "mnt", "mnt/.safetensors/archive.safetensors"]
READING = ("ls", "info", "cat", "slice", "verify", "diff", "repack", "recover", "upload")


def stfs(directory, words):
    return subprocess.run([STFS, *words], cwd=directory, capture_output=True, encoding="latin-1",
                          timeout=60 * mounted.PATIENCE)


def verbs():
    listed = stfs("/", ["--help"]).stdout.split("\nVerbs:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in listed.splitlines()]


def options_of(verb):
    """{long name: (short name or None, whether it takes a value)}, of what --help prints."""
    listed = stfs("/", [verb, "--help"]).stdout.split("\nOptions:\n")[1].split("\n\n")[0]
    found = [re.match(r"  (?:(-\w),)?(--[\w-]+)( \S+)?", line) for line in listed.splitlines()]
    return {line[2]: (line[1], line[3] is not None) for line in found if line}


# test_mounts_verbs.py and test_top.py use all options of these.
OF_MOUNTS = {"mounts", "top", "umount"}
OPTIONS = {verb: options_of(verb) for verb in verbs() if verb not in OF_MOUNTS} if STFS.exists() else {}


def parts(command):
    """The verb, its options as pairs of a name and a value or None, and the other words."""
    verb, *words = command.split(" ")
    options, others = [], []
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            others.append(word)
        else:
            options.append((word, words.pop(0) if OPTIONS[verb][word][1] else None))
    return verb, options, others


def spellings(command):
    verb, options, others = parts(command)
    apart = [word for name, value in options for word in ([name] if value is None else [name, value])]
    joined = [name if value is None else f"{name}={value}" for name, value in options]
    short = [word for name, value in options for word in
             ([OPTIONS[verb][name][0] or name] + ([] if value is None else [value]))]
    attached = [(OPTIONS[verb][name][0] or f"{name}=") + value if value is not None else name for name, value in options]
    return [[verb, *apart, *others], [verb, *others, *apart], [verb, *joined, "--", *others], [verb, *others, *joined],
            [verb, *short, *others], [verb, *attached, *others]]


@pytest.fixture
def directory(tmp_path):
    archive_file.save_with_reference(tmp_path / "m.safetensors", TENSORS)
    archive_file.save_with_reference(tmp_path / "d.safetensors", TENSORS)
    (tmp_path / "one").mkdir()
    archive_file.save_with_reference(tmp_path / "one/o.safetensors", TENSORS)
    ShardedModel(tmp_path / "sharded", shards=2, tensors=TENSORS)
    (tmp_path / "raw").write_bytes(W.tobytes())
    (tmp_path / "raw.npy").write_bytes(W.tobytes())
    (tmp_path / "rules").write_text("w cpu\n")
    for number, tensors in enumerate([TENSORS, {name: values + 2 for name, values in TENSORS.items()}]):
        (tmp_path / f"published/weight_v{number:06d}").mkdir(parents=True)
        archive_file.save_with_reference(tmp_path / f"published/weight_v{number:06d}/model.safetensors", tensors)
    shutil.copytree(tmp_path / "published/weight_v000000", tmp_path / "host")
    (tmp_path / "hook").write_text("#!/bin/sh\necho hook $STFS_VERSION $STFS_MODEL\n")
    (tmp_path / "hook").chmod(0o755)
    for archive in ("m.safetensors", "d.safetensors", "one", "sharded"):  # their headers have room for edits then
        assert stfs(tmp_path, ["set", archive, "--metadata", "k=v"]).returncode == 0
    assert stfs(tmp_path, ["verify", "m.safetensors", "--record", "sums.json"]).returncode == 0
    assert stfs(tmp_path, ["diff", "m.safetensors", "d.safetensors", "--out", "delta.safetensors"]).returncode == 0
    return tmp_path


def check(directory, words, pattern):
    done = stfs(directory, words)
    errors = re.sub(r"stfs put: .* stay in the file as tensors .*: (--keep-space|process) .*\n", "", done.stderr)
    assert (done.returncode, errors) == (0, ""), words
    assert re.search(pattern, done.stdout, re.DOTALL if "NUMPY" in pattern else 0), (words, done.stdout)


@pytest.fixture
def hub(directory, monkeypatch):
    """Has the model that commands name."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    with hub_served() as hub:
        for name, value in (("HF_ENDPOINT", hub.address), ("HOME", directory), ("XDG_CACHE_HOME", directory / "cache")):
            monkeypatch.setenv(name, str(value))
        hub.add_model("org/model", {"model.safetensors": (directory / "m.safetensors").read_bytes()})
        yield hub


@pytest.mark.parametrize("command, pattern", COMMANDS, ids=[command for command, _ in COMMANDS])
def test_a_command_in_every_spelling(directory, mounts, hub, command, pattern):
    if command.startswith(("fetch", "cache")):
        needs_libcurl(STFS)
    if command.endswith(" mnt"):
        (directory / "mnt").mkdir()
        mounts(directory / "m.safetensors", path=directory / "mnt")
    server = Server(directory / "socket", directory / "m.safetensors") if "socket" in command else None
    try:
        if server is not None:
            server.ready()
        for words in spellings(command):
            for version in (42, 43):
                shutil.rmtree(directory / f"published/weight_v{version:06d}", ignore_errors=True)  # nothing is published twice
            if command.startswith("cache"):  # it lists and drops what was fetched
                check(directory, ["fetch", "hf://org/model"], "tensors")
            check(directory, words, pattern)
    finally:
        assert server is None or server.finish() is None


@pytest.mark.parametrize("target", TARGETS)
def test_every_command_with_a_target(directory, mounts, target):
    if target.startswith("mnt"):
        (directory / "mnt").mkdir()
        mounts(directory / "m.safetensors", path=directory / "mnt")
    for command, pattern in COMMANDS:
        verb, options, others = parts(command)
        if "mnt" in others and not target.startswith("mnt"):
            continue
        if "m.safetensors" in others and (verb in READING or not target.endswith("archive.safetensors")):
            words = [target if word == "m.safetensors" else word for word in spellings(command)[0]]
            check(directory, words, pattern)


def test_the_table_has_every_verb_and_every_option():
    """Except for options that start a server, which test_serve.py tests."""
    used = {verb: {"--help"} for verb in OPTIONS}
    for command, _ in COMMANDS:
        verb, options, _ = parts(command)
        used[verb] |= {name for name, _ in options}
    assert {verb for verb, names in used.items() if len(names) > 1} == set(OPTIONS)
    missing = {verb: set(OPTIONS[verb]) - used[verb] for verb in OPTIONS}
    assert {verb: names for verb, names in missing.items() if names} == {
        "serve": {"--device", "--select", "--dtype", "--cast", "--socket", "--verify", "--no-follow"}}


@pytest.mark.parametrize("verb", OPTIONS)
def test_both_names_of_help_print_it(verb):
    for name in ("-h", "--help"):
        done = stfs("/", [verb, name])
        assert (done.returncode, done.stderr) == (0, "")
        assert f"\nUsage: stfs {verb} " in done.stdout


@pytest.mark.parametrize("verb", OPTIONS)
def test_what_the_verb_does_not_know_is_wrong_usage(directory, verb):
    first = spellings(next(command for command, _ in COMMANDS if command.split()[0] == verb))[0]
    bare = [f"{name}=x" for name, (_, takes_value) in OPTIONS[verb].items() if not takes_value and name != "--help"]
    valued = [name for name, (_, takes_value) in OPTIONS[verb].items() if takes_value]
    for word in ("--no-such-option", "-Z", *bare, *valued):
        done = stfs(directory, [*first, word])
        assert (done.returncode, done.stdout) == (2, ""), word
        assert word.split("=")[0] in done.stderr, (word, done.stderr)
