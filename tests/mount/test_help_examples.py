# Every example that a --help prints is run as it is printed, in a directory that has the files that it names.
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import archive_file
import mounted
import numpy as np
import pytest
from hub_server import hub_served
from lease_client import Server
from web_server import needs_libcurl

pytestmark = [pytest.mark.once, pytest.mark.library]

STFS = mounted.BUILD / "stfs"
VERBS = ["ls", "info", "cat", "slice", "verify", "diff", "put", "rm", "mv", "set", "apply", "pull", "commit", "compact", "repack", "recover", "upload", "devices", "serve",
         "fetch", "cache", "mounts", "top", "umount", "sample"]
HAS_MODULE = bool(list((mounted.BUILD / "python" / "stfs").glob("_stfs.*so"))) and not mounted.is_sanitized()


def help_of(*verb):
    return subprocess.run([STFS, *verb, "--help"], capture_output=True, text=True, check=True).stdout


def examples_of(help_text):
    """The commands, without the explanations beside them."""
    lines = help_text.split("Examples:\n")[1].splitlines()
    return [re.split(r" {2,}", line.strip())[0] for line in lines if line.startswith("  ")]


def all_examples():
    if not STFS.exists():  # the fixtures say so
        return []
    return [(verb, example) for verb in VERBS for example in examples_of(help_of(verb))]


def test_the_help_of_every_verb_has_examples():
    listed = [line.split()[0] for line in help_of().split("Verbs:\n")[1].split("\n\n")[0].splitlines()]
    assert sorted(listed) == sorted(VERBS)
    assert {verb for verb, _ in all_examples()} == set(VERBS)


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Named as the tensors of a real model."""
    numbers = np.random.default_rng(3)
    tensors = {name: numbers.standard_normal((128, 64), "f4") for name in
               ["lm_head.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                "model.layers.0.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight"]}
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = numbers.standard_normal((128, 256), "f4")  # as many numbers as 256 rows of 128
    tensors["model.norm.weight"] = np.ones(64, "f4")
    return archive_file.save_with_reference(tmp_path_factory.mktemp("sample") / "model.safetensors", tensors,
                                            metadata={"format": "pt", "author": "me"})


@pytest.fixture
def directory(sample):
    """A directory with all files that the examples name. Its path is short, because it holds a socket."""
    directory = Path(tempfile.mkdtemp(prefix="stfs-help-"))
    for name in ("model", "lora-merged", "delta", "tuned", "copy", "checkpoint", "fp8"):
        shutil.copy(sample, directory / f"{name}.safetensors")
    (directory / "model").mkdir()
    shutil.copy(sample, directory / "model")
    names = subprocess.run([STFS, "ls", "--json", sample], capture_output=True, text=True, check=True).stdout
    weight_map = {row["name"]: "model.safetensors" for row in json.loads(names)["tensors"]}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (directory / "card.md").write_text("# A model\n")
    for name in ("tp.rules", "rules.txt"):
        (directory / name).write_text("* cpu\n")
    run = lambda *words: subprocess.run([STFS, *words], cwd=directory, check=True, capture_output=True).stdout  # noqa: E731
    (directory / "lm_head.bin").write_bytes(run("cat", "model.safetensors", "lm_head.weight"))
    run("slice", "model.safetensors", "model.norm.weight[...]", "-o", "norm.npy")
    shutil.copy(directory / "norm.npy", directory / "adapter.npy")
    run("verify", "model.safetensors", "--record", "model.sums.json")  # for --against
    run("diff", "model.safetensors", "tuned.safetensors", "--out", "kept.delta.safetensors")
    shutil.copy(directory / "kept.delta.safetensors", directory / "model.delta.safetensors")
    for place, archive in (("checkpoint", "model"), ("published/weight_v000041", "model"), ("published/weight_v000042", "tuned")):
        (directory / place).mkdir(parents=True)
        shutil.copy(directory / f"{archive}.safetensors", directory / place / "model.safetensors")
    shutil.copytree(directory / "checkpoint", directory / "last")
    (directory / "reload").write_text("#!/bin/sh\n")
    (directory / "reload").chmod(0o755)
    programs = directory / "bin"
    programs.mkdir()
    (programs / "stfs").symlink_to(STFS)
    (programs / "python").symlink_to(sys.executable)
    (programs / "make-weights").write_text("#!/bin/sh\ncat lm_head.bin\n")
    (programs / "make-weights").chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def environment(directory):
    return {**os.environ, "PATH": f"{directory / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(mounted.BUILD / "python")}


def has_gpu():
    return json.loads(subprocess.run([STFS, "devices", "--json"], capture_output=True, check=True).stdout)["why_no_cuda"] is None


def serve(command, directory):
    """Starts it, and ends it once it serves."""
    process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=directory, env=environment(directory), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    line = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=30 * mounted.PATIENCE)[1]
    return (0 if line.startswith("serving ") and process.returncode == -signal.SIGTERM else 1), errors


@pytest.fixture(scope="module")
def hub(sample):
    """Has the model that the examples name, and its archive at an address."""
    with hub_served() as hub:
        for revision in ("main", "REVISION"):
            hub.add_model("ORG/MODEL", {"model.safetensors": sample.read_bytes()}, revision)
        yield hub


def fetch_from(hub, directory, monkeypatch):
    """The environment of commands that name the model on the hub. Its first tensors are here already."""
    needs_libcurl(STFS)
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    for name, value in (("HF_ENDPOINT", hub.address), ("HOME", directory), ("XDG_CACHE_HOME", directory / "cache")):
        monkeypatch.setenv(name, str(value))
    subprocess.run([STFS, "fetch", "hf://ORG/MODEL"], check=True, capture_output=True)


@pytest.mark.parametrize("verb, example", all_examples())
def test_an_example_runs(verb, example, directory, mounts, hub, monkeypatch):
    if "python" in example and not HAS_MODULE:
        pytest.skip("the Python module is not built, or can't be loaded into a Python without a sanitizer")
    for program in ("jq", "xxh128sum", "od"):
        if program in example and shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    command = example.replace("/run/user/1000", str(directory)).replace("--size 1G", "--size 1M")
    command = command.replace("--follow", "--follow --to 42")
    if "/mnt/model" in command:
        command = command.replace("/mnt/model", str(mounts(directory / "model.safetensors").path))
    if verb in ("fetch", "cache"):
        fetch_from(hub, directory, monkeypatch)
        command = command.replace("https://HOST/model.safetensors", f"{hub.address}/ORG/MODEL/resolve/main/model.safetensors")
    if verb == "sample":
        (directory / "model.safetensors").unlink()
    if "--record" in command:
        (directory / "model.sums.json").unlink()
    is_server = verb == "serve" and "--device" in command
    server = None if is_server or "model.sock" not in command else Server(directory / "model.sock", directory / "model.safetensors")
    try:
        if server is not None:
            server.ready()
        if is_server:
            code, errors = serve(command, directory)
        else:
            done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=directory, env=environment(directory),
                                  capture_output=True, text=True, timeout=60 * mounted.PATIENCE)
            # `| head` ends what writes to it.
            code, errors = (0 if done.returncode == 128 + signal.SIGPIPE else done.returncode), done.stderr
            if "python" in example:
                assert "lm_head.weight" in done.stdout
    finally:
        assert server is None or server.finish() is None
    if "cuda:0" in command and not has_gpu():
        assert code == 1 and "cuda:0: " in errors, errors
    else:
        assert code == 0, errors


@pytest.mark.parametrize("example", examples_of(help_of()) if STFS.exists() else [])
def test_an_example_of_the_first_help_runs(example, directory, mounts, hub, monkeypatch):
    test_an_example_runs(example.split()[1], example, directory, mounts, hub, monkeypatch)
