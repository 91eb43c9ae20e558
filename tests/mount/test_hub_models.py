# Models of the Hugging Face Hub: hf://ORG/MODEL is pinned to a commit, read by ranges, and used from the Hugging Face cache.
import errno
import json
import os
import stat
import subprocess

import numpy as np
import pytest
import safetensors.numpy
from delta_variants import STFS
from hub_server import commit_of, digest_of, hub_served
from mirror_mount import mirror_mount
from mounted import MountFailed, errno_of
from web_server import Page, needs_libcurl, served

MODEL = "org/model"
CONFIG = json.dumps({"model_type": "llama"}).encode()
TOKENIZER = b"t" * 10_000
MALLORY = 45678


@pytest.fixture(autouse=True, scope="module")
def libcurl():
    needs_libcurl(STFS)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    for name in ("home", "cache"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with hub_served() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def own_disk_of(tmp_path):
    """A disk that is nearly full."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "none", place], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"needs root: no mount of tmpfs: {made.stderr}")
    try:
        (place / "full").write_bytes(bytes(4_000_000))
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def arrays(seed=1):
    rng = np.random.default_rng(seed)
    return {"embed": rng.integers(0, 256, 3_000_000, "u1"), "h.0.w": rng.normal(size=(300, 500)).astype("f4"),
            "h.1.w": rng.normal(size=(17, 3)).astype("f2")}


def archive_of(seed=1):
    return safetensors.numpy.save(arrays(seed), {"format": "pt"})


def sharded(seed=1):
    """Two shards, their index, and the files beside them."""
    values = arrays(seed)
    shards = {"model-00001-of-00002.safetensors": ["embed"], "model-00002-of-00002.safetensors": ["h.0.w", "h.1.w"]}
    files = {name: safetensors.numpy.save({key: values[key] for key in keys}) for name, keys in shards.items()}
    index = {"metadata": {}, "weight_map": {key: name for name, keys in shards.items() for key in keys}}
    return files | {"model.safetensors.index.json": json.dumps(index).encode(), "config.json": CONFIG,
                    "tokenizer.json": TOKENIZER, ".gitattributes": b"x", "pytorch_model.bin": b"b" * 9000}


@pytest.fixture
def model(hub):
    """The commit of a model with one archive."""
    return hub.add_model(MODEL, {"model.safetensors": archive_of(), "config.json": CONFIG})


def stfs(*words, status=0):
    result = subprocess.run([STFS, *map(str, words)], capture_output=True)
    assert result.returncode == status, (result.returncode, result.stderr)
    return result.stdout if status == 0 else result.stderr.decode()


def test_a_model_is_read_by_its_name(hub, model):
    assert {line["name"] for line in json.loads(stfs("ls", "--json", f"hf://{MODEL}"))["tensors"]} == set(arrays())
    assert stfs("cat", f"hf://{MODEL}", "h.0.w") == arrays()["h.0.w"].tobytes()
    assert stfs("cat", f"hf://{MODEL}/model.safetensors", "h.1.w") == arrays()["h.1.w"].tobytes()
    assert model in stfs("info", f"hf://{MODEL}").decode()


def test_shards_and_their_index_are_one_model(hub):
    hub.add_model(MODEL, sharded())
    stfs("ls", f"hf://{MODEL}")
    assert len(hub.cdn.requests) == 2, "a request for each header"
    for name, array in arrays().items():
        assert stfs("cat", f"hf://{MODEL}", name) == array.tobytes()


@pytest.mark.parametrize("written", ["{}@v1", "{}@refs/pr/1", "{}@refs%2Fpr%2F1/model.safetensors"])
def test_a_revision_is_chosen(hub, model, written):
    hub.add_model(MODEL, {"model.safetensors": archive_of(2)}, "v1" if "v1" in written else "refs/pr/1")
    assert stfs("cat", "hf://" + written.format(MODEL), "h.1.w") == arrays(2)["h.1.w"].tobytes()
    assert stfs("cat", f"hf://{MODEL}@{model}", "h.1.w") == arrays()["h.1.w"].tobytes()


@pytest.mark.parametrize("kind", ["resolve", "blob"])
def test_the_address_of_a_page_of_the_hub_is_its_name(hub, model, kind):
    address = f"{hub.address}/{MODEL}/{kind}/main/model.safetensors"
    assert stfs("cat", address, "h.1.w") == arrays()["h.1.w"].tobytes()
    assert model in stfs("info", address).decode()


def test_a_mount_stays_at_its_commit(hub, model, mounts):
    mount = mounts(f"hf://{MODEL}")
    hub.models[MODEL]["next"] = hub.models[MODEL].pop("main")
    hub.add_model(MODEL, {"model.safetensors": archive_of(2)})
    # The commit's files keep their addresses.
    hub.models[MODEL] = {"main": hub.models[MODEL]["next"], "new": hub.models[MODEL]["main"]}
    for name, array in arrays().items():
        assert (mount / name).read_bytes() == array.tobytes()
    assert errno_of(open, mount / "embed", "r+b") == errno.EROFS
    assert model in mount.attribute("", "archive")


def test_a_tensor_costs_its_bytes(hub, model):
    stfs("cat", f"hf://{MODEL}", "h.1.w")
    assert hub.cdn.sent_bytes <= 2 * (256 << 10)
    assert len([path for path, _, _ in hub.requests if path.startswith("/api/")]) == 1


def test_a_signed_address_that_expires_is_asked_for_again(hub, model):
    hub.cdn.lives = 1
    assert stfs("cat", f"hf://{MODEL}", "embed") == arrays()["embed"].tobytes()
    assert len(hub.cdn.left) == 2  # one for the header, one for the tensor


def test_a_mirror_may_write_no_quotes(hub, model):
    hub.quote = ""
    assert stfs("cat", f"hf://{MODEL}", "h.1.w") == arrays()["h.1.w"].tobytes()


def test_an_answer_of_another_file_is_refused(hub, model):
    hub.wrong_digests["model.safetensors"] = "0" * 64
    assert "the Hub lists this file as" in stfs("ls", f"hf://{MODEL}", status=1)


def test_a_file_that_becomes_another_one_at_its_address_is_refused(hub, model, mounts):
    mount = mounts(f"hf://{MODEL}")
    (mount / "h.1.w").read_bytes()
    page = hub.cdn.pages["/" + digest_of(archive_of())]
    hub.cdn.pages["/" + digest_of(archive_of())] = Page.of(archive_of(2), '"other"')
    assert page.size == len(archive_of(2))
    assert errno_of((mount / "embed").read_bytes) == errno.ESTALE


def test_an_index_with_other_bytes_is_refused(hub):
    files = sharded()
    hub.add_model(MODEL, files)
    hub.wrong_files["model.safetensors.index.json"] = files["model.safetensors.index.json"].replace(b"00001-of", b"00003-of")
    assert "and the bytes that came have" in stfs("ls", f"hf://{MODEL}", status=1)


def test_a_file_of_another_size_is_refused(hub, model):
    digest = digest_of(archive_of())
    hub.cdn.pages["/" + digest].size -= 1
    assert "the Hub lists" in stfs("ls", f"hf://{MODEL}", status=1)


def test_a_comparison_reads_only_shards_that_differ(hub):
    files = sharded()
    hub.add_model(MODEL, files)
    changed = arrays(2)
    other = files | {"model-00002-of-00002.safetensors": safetensors.numpy.save({key: changed[key] for key in ("h.0.w", "h.1.w")})}
    hub.add_model("org/tuned", other)
    hub.cdn.sent_bytes = 0
    result = subprocess.run([STFS, "diff", "--json", f"hf://{MODEL}", "hf://org/tuned"], capture_output=True, text=True)
    assert result.returncode == 1, result.stderr
    assert [tensor["name"] for tensor in json.loads(result.stdout)["differences"]] == ["h.0.w", "h.1.w"]
    sizes = 2 * len(other["model-00002-of-00002.safetensors"])
    assert hub.cdn.sent_bytes <= sizes + 4 * (256 << 10) < len(files["model-00001-of-00002.safetensors"])
    same = subprocess.run([STFS, "diff", f"hf://{MODEL}", f"hf://{MODEL}@main"], capture_output=True, text=True)
    assert same.returncode == 0, same.stderr


# --- names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hf://", "hf://org", "hf://org/", "hf:///x", "hf://org/../x", "hf://org/model@", "hf://org/model/../x",
                                  "hf://org/model//x", "hf://or g/model"])
def test_a_name_of_no_model_is_refused(hub, name):
    assert "names no model of the Hub" in stfs("ls", name, status=1)
    assert hub.requests == []


@pytest.mark.parametrize("files, chosen", [
    ({"a.safetensors": 1, "model.safetensors": 2}, "model.safetensors"),
    ({"only.safetensors": 1, "config.json": 0}, "only.safetensors"),
    ({"unet/model.safetensors": 1, "model.safetensors": 2}, "model.safetensors"),
])
def test_the_archive_that_a_library_would_load_is_chosen(hub, files, chosen):
    hub.add_model(MODEL, {name: archive_of(seed) if seed else CONFIG for name, seed in files.items()})
    assert stfs("cat", f"hf://{MODEL}", "h.1.w") == arrays(files[chosen])["h.1.w"].tobytes()


def test_a_directory_of_a_model_is_named(hub):
    hub.add_model(MODEL, {"unet/model.safetensors": archive_of(), "vae/model.safetensors": archive_of(2)})
    assert stfs("cat", f"hf://{MODEL}/vae", "h.1.w") == arrays(2)["h.1.w"].tobytes()
    refused = stfs("ls", f"hf://{MODEL}", status=1)
    assert "unet/model.safetensors, vae/model.safetensors" in refused and "hf://org/model/FILE" in refused


@pytest.mark.parametrize("name, words", [
    ("org/other", "no such model, or it is private"), (f"{MODEL}@v9", "has no revision v9"), (f"{MODEL}/x.safetensors", "has no file x"),
])
def test_what_the_hub_does_not_have_is_said(hub, model, name, words):
    assert words in stfs("ls", f"hf://{name}", status=1)


@pytest.mark.parametrize("kind", ["datasets", "spaces"])
def test_only_models_are_read(hub, kind):
    assert "only models of the Hub" in stfs("ls", f"hf://{kind}/org/x", status=1)


def test_a_list_without_sizes_is_refused(hub, model, monkeypatch):
    listed = hub.list_of
    file = {"rfilename": "model.safetensors", "lfs": {"sha256": digest_of(archive_of())}}
    monkeypatch.setattr(hub, "list_of", lambda *words: {**listed(*words), "siblings": [file]})
    assert "the Hub lists 0" in stfs("ls", f"hf://{MODEL}", status=1)


def test_without_a_network_the_reason_comes_at_once(hub, model, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    refused = subprocess.run([STFS, "ls", f"hf://{MODEL}"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and f"hf://{MODEL}: " in refused.stderr


def test_a_list_without_digests_is_refused(hub, model, monkeypatch):
    listed = hub.list_of
    monkeypatch.setattr(hub, "list_of", lambda *words: {**listed(*words), "siblings": [{"rfilename": "model.safetensors"}]})
    assert "without a digest" in stfs("ls", f"hf://{MODEL}", status=1)


def test_a_list_without_end_is_refused(hub, model, monkeypatch):
    monkeypatch.setattr(hub, "list_of", lambda *_: "x" * (17 << 20))
    assert "has more than" in stfs("ls", f"hf://{MODEL}", status=1)


def test_a_model_without_archives_is_named(hub):
    hub.add_model(MODEL, {"pytorch_model.bin": b"x"})
    assert "has no .safetensors archive" in stfs("ls", f"hf://{MODEL}", status=1)


def test_a_renamed_model_is_found(hub, model):
    hub.renamed["old/name"] = MODEL
    assert stfs("cat", "hf://old/name", "h.1.w") == arrays()["h.1.w"].tobytes()


def test_an_index_of_the_hub_names_no_file_that_is_not_listed(hub):
    hub.add_model("org/other", {"model.safetensors": archive_of()})
    index = json.dumps({"weight_map": {"a": "x.safetensors"}}).encode()
    hub.add_model(MODEL, {"model.safetensors.index.json": index})
    stfs("ls", f"hf://{MODEL}", status=1)
    assert not any("x.safetensors" in path for path, _, _ in hub.requests)


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b'{"sha": 1}', b'{"sha": "x", "id": "org/model"}', b'"' * 100_000,
                                    b'{"sha": "' + b"a" * 40 + b'", "id": "../..", "siblings": []}'])
def test_an_answer_that_is_no_list_is_refused(hub, model, monkeypatch, answer):
    monkeypatch.setattr(hub, "list_of", lambda *_: None)
    monkeypatch.setattr(json, "dumps", lambda *_: answer.decode())
    assert "the Hub's answer" in stfs("ls", f"hf://{MODEL}", status=1)


def test_paths_of_a_list_lead_nowhere_else(hub, model):
    hub.models[MODEL]["main"]["../model.safetensors"] = archive_of(2)
    assert "names no model" in stfs("ls", f"hf://{MODEL}/../model.safetensors", status=1)
    assert stfs("cat", f"hf://{MODEL}", "h.1.w") == arrays()["h.1.w"].tobytes()


def test_a_busy_hub_is_asked_again_after_its_pause(hub, model):
    hub.faults, hub.fault_headers = [429, 503], {"RateLimit": '"api";r=0;t=0'}
    assert stfs("cat", f"hf://{MODEL}", "h.1.w") == arrays()["h.1.w"].tobytes()


# --- the token ------------------------------------------------------------------------------------------------


def tokens_at(server):
    return {headers.get("Authorization") for _, _, headers in server.requests}


@pytest.mark.parametrize("place", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "cache"])
def test_the_token_goes_to_the_hub_alone(hub, model, monkeypatch, tmp_path, place):
    hub.tokens[MODEL] = "hf_secret"
    assert "or it is private" in stfs("ls", f"hf://{MODEL}", status=1)
    if place == "HF_TOKEN_PATH":
        (tmp_path / "t").write_text("hf_secret\n")
        monkeypatch.setenv(place, str(tmp_path / "t"))
    elif place in ("HF_HOME", "cache"):
        home = tmp_path / ("hf" if place == "HF_HOME" else "cache/huggingface")
        home.mkdir()
        (home / "token").write_text("hf_secret\n")
        if place == "HF_HOME":
            monkeypatch.setenv("HF_HOME", str(home))
    else:
        monkeypatch.setenv(place, "hf_secret")
    hub.requests.clear()
    assert stfs("cat", f"hf://{MODEL}", "h.1.w") == arrays()["h.1.w"].tobytes()
    assert tokens_at(hub) == {"Bearer hf_secret"}
    assert tokens_at(hub.cdn) == {None}


def test_a_token_may_be_kept_back(hub, model, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    stfs("ls", f"hf://{MODEL}")
    assert tokens_at(hub) == {None}


def test_a_token_is_in_no_text(hub, model, monkeypatch, mounts, tmp_path):
    hub.tokens[MODEL] = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    mount = mounts(f"hf://{MODEL}", f"delta={tmp_path / 'd.safetensors'}")
    (mount / "h.1.w").write_bytes(bytes(102))
    assert (mount / ".safetensors" / "pretrained" / "config.json").read_bytes() == CONFIG
    assert mount.unmount() == 0
    found = subprocess.run(["grep", "-r", "-a", "-l", "hf_secret", tmp_path / "cache", tmp_path / "d.safetensors"], capture_output=True)
    assert found.stdout == b""
    assert "hf_secret" not in mount.log()
    assert "hf_secret" not in stfs("info", f"hf://{MODEL}").decode()


def test_a_proxy_does_not_see_the_token(hub, model, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with served() as proxy:
        monkeypatch.setenv("http_proxy", proxy.address)
        assert stfs("cat", f"hf://{MODEL}", "h.1.w") == arrays()["h.1.w"].tobytes()
        assert proxy.requests == []


def test_a_model_that_needs_a_token_is_for_its_user_alone(hub, model, monkeypatch, mounts, tmp_path):
    mount = mounts(f"hf://{MODEL}")
    for file in (mount / "embed", mount / ".safetensors" / "pretrained" / "config.json"):
        assert stat.S_IMODE(os.stat(file).st_mode) & 0o044 == 0o044, file
    assert mount.unmount() == 0
    hub.tokens[MODEL] = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    mount = mounts(f"hf://{MODEL}", f"delta={tmp_path / 'd.safetensors'}")
    for file in (mount / "embed", mount / ".safetensors" / "pretrained" / "config.json", tmp_path / "d.safetensors"):
        assert stat.S_IMODE(os.stat(file).st_mode) & 0o077 == 0, file


def test_a_token_that_the_hub_refuses_is_named(hub, model, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    hub.faults = [401]
    assert "the Hub refuses the token of this user" in stfs("ls", f"hf://{MODEL}", status=1)


@pytest.mark.parametrize("offline", ["0", "1"])
def test_an_address_of_the_hub_with_a_password_is_refused(hub, model, monkeypatch, offline):
    monkeypatch.setenv("HF_ENDPOINT", "https://me:secret@hub.example")
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    refused = stfs("ls", f"hf://{MODEL}", status=1)
    assert "HF_ENDPOINT" in refused and "secret" not in refused


@pytest.mark.parametrize("token", ["a b", "x\r\nX-Injected: 1"])
def test_a_token_with_strange_characters_is_not_sent(hub, model, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token)
    assert "characters that none has" in stfs("ls", f"hf://{MODEL}", status=1)
    assert hub.requests == []


def test_a_token_is_not_sent_in_plain(hub, model, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example:1")
    assert "over https only" in stfs("ls", f"hf://{MODEL}", status=1)


def test_a_gated_model_names_its_page(hub, model, monkeypatch):
    hub.gated.add(MODEL)
    refused = stfs("ls", f"hf://{MODEL}", status=1)
    assert f"terms: {hub.address}/{MODEL}" in refused and "HF_TOKEN" in refused
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert stfs("ls", f"hf://{MODEL}", status=1).endswith(f"{hub.address}/{MODEL}\n")


@pytest.mark.parametrize("token", [None, "hf_x"])
def test_a_refusal_without_a_reason_says_what_is_needed(hub, model, monkeypatch, token):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.faults = [403]
    refused = stfs("ls", f"hf://{MODEL}", status=1)
    assert "the Hub refuses it" in refused
    assert ("may not read it" if token else "needs a token") in refused


# --- the files beside the model -------------------------------------------------------------------------------


def test_the_files_beside_the_model_come_when_they_are_looked_for(hub, mounts):
    hub.add_model(MODEL, sharded())
    mount = mounts(f"hf://{MODEL}")
    assert (mount / "h.1.w").read_bytes() == arrays()["h.1.w"].tobytes()
    assert not any("config" in path or "tokenizer" in path for path, _, _ in hub.requests)
    pretrained = mount / ".safetensors" / "pretrained"
    assert sorted(os.listdir(pretrained)) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (pretrained / "config.json").read_bytes() == CONFIG
    assert (pretrained / "tokenizer.json").read_bytes() == TOKENIZER
    assert mount.unmount() == 0
    hub.requests.clear()
    mount = mounts(f"hf://{MODEL}")  # they are kept
    assert (mount / ".safetensors" / "pretrained" / "tokenizer.json").read_bytes() == TOKENIZER
    assert not any("config" in path or "tokenizer" in path for path, _, _ in hub.requests)


@pytest.mark.parametrize("wrong", [403, b"}" * len(CONFIG)], ids=["refused", "other bytes"])
def test_a_file_that_the_hub_fails_to_give_is_an_error_of_that_file(hub, mounts, wrong):
    hub.add_model(MODEL, sharded())
    hub.wrong_files["config.json"] = wrong
    mount = mounts(f"hf://{MODEL}")
    pretrained = mount / ".safetensors" / "pretrained"
    assert errno_of(open, pretrained / "config.json") not in (0, errno.ENOENT)
    assert f"resolve/{commit_of(MODEL + 'main')}: config.json: " in mount.log()
    assert (pretrained / "tokenizer.json").read_bytes() == TOKENIZER
    assert errno_of(open, pretrained / "adapter_config.json") == errno.ENOENT
    assert "tokenizer.json" in os.listdir(pretrained)


def test_a_look_up_brings_one_file(hub, mounts):
    hub.add_model(MODEL, sharded() | {"README.md": b"r" * 100, "big.jpg": b"j" * 100})
    mount = mounts(f"hf://{MODEL}")
    pretrained = mount / ".safetensors" / "pretrained"
    hub.requests.clear()
    assert (pretrained / "config.json").read_bytes() == CONFIG
    assert errno_of(open, pretrained / "none.json") == errno.ENOENT
    assert [path.rpartition("/")[2] for path, _, _ in hub.requests] == ["config.json"]
    assert sorted(os.listdir(pretrained)) == ["README.md", "config.json", "model.safetensors", "tokenizer.json"]


def test_a_file_that_cannot_be_kept_leaves_nothing(hub, mounts, tmp_path):
    hub.add_model(MODEL, sharded())
    mount = mounts(f"hf://{MODEL}")
    place, = (tmp_path / "cache" / "safetensorsfs" / "hub" / "org@model").iterdir()
    (place / "config.json").mkdir()
    (place / "config.json" / "x").touch()
    assert errno_of((mount / ".safetensors" / "pretrained" / "config.json").read_bytes) == errno.EISDIR
    os.listdir(mount / ".safetensors" / "pretrained")
    assert sorted(os.listdir(place)) == ["config.json", "tokenizer.json"]


def test_a_large_file_comes_in_pieces_and_is_compared(hub, mounts, tmp_path):
    data = bytes(range(251)) * 40_000
    hub.add_model(MODEL, sharded() | {"tokenizer.json": data, "vocab.json": data + b"x"})
    page = hub.cdn.pages["/" + digest_of(data + b"x")]
    hub.cdn.pages["/" + digest_of(data + b"x")] = Page.of(page.read(0, len(data)) + b"y", '"cdn"')
    mount = mounts(f"hf://{MODEL}")
    pretrained = mount / ".safetensors" / "pretrained"
    hub.cdn.requests.clear()
    assert (pretrained / "tokenizer.json").read_bytes() == data
    ranges = [asked.removeprefix("bytes=").split("-") for _, asked, _ in hub.cdn.requests]
    assert len(ranges) == 3 and all(int(last) - int(first) < 4 << 20 for first, last in ranges)
    assert errno_of(open, pretrained / "vocab.json") == errno.ESTALE
    place, = (tmp_path / "cache" / "safetensorsfs" / "hub" / "org@model").iterdir()
    assert "vocab.json" not in os.listdir(place) and not any(name.startswith(".stfs") for name in os.listdir(place))


def test_the_kept_files_of_another_hub_are_not_used(hub, mounts, monkeypatch):
    hub.add_model(MODEL, sharded())
    with hub_served() as other:
        other.add_model(MODEL, sharded() | {"config.json": b"}" * len(CONFIG)})
        monkeypatch.setenv("HF_ENDPOINT", other.address)
        mount = mounts(f"hf://{MODEL}")
        assert (mount / ".safetensors" / "pretrained" / "config.json").read_bytes() == b"}" * len(CONFIG)
        assert mount.unmount() == 0
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    mount = mounts(f"hf://{MODEL}")
    assert (mount / ".safetensors" / "pretrained" / "config.json").read_bytes() == CONFIG


def test_a_kept_file_that_was_damaged_is_brought_again(hub, mounts, tmp_path):
    hub.add_model(MODEL, sharded())
    mount = mounts(f"hf://{MODEL}")
    assert (mount / ".safetensors" / "pretrained" / "config.json").read_bytes() == CONFIG
    assert mount.unmount() == 0
    kept, = (tmp_path / "cache" / "safetensorsfs" / "hub" / "org@model").glob("*/config.json")
    kept.write_bytes(b"}" * len(CONFIG))
    mount = mounts(f"hf://{MODEL}")
    assert (mount / ".safetensors" / "pretrained" / "config.json").read_bytes() == CONFIG


def test_a_cache_that_others_may_write_is_not_used(hub, mounts, tmp_path):
    hub.add_model(MODEL, sharded())
    place = tmp_path / "cache" / "safetensorsfs"
    place.mkdir()
    place.chmod(0o777)
    mount = mounts(f"hf://{MODEL}")
    assert "may write it" in mount.log()
    assert (mount / "h.1.w").read_bytes() == arrays()["h.1.w"].tobytes()
    assert list(place.iterdir()) == []


# --- a delta on top -------------------------------------------------------------------------------------------


def test_a_delta_knows_its_base_without_reading_it(hub, model, mounts, tmp_path):
    options = f"delta={tmp_path / 'd.safetensors'}"
    mount = mounts(f"hf://{MODEL}", options)
    (mount / "h.1.w").write_bytes(b"\1" * 102)
    os.rename(mount / "h.0.w", mount / "renamed")
    assert mount.unmount() == 0
    sent = hub.cdn.sent_bytes
    assert sent < 1_500_000, "the whole base has 3.6 MB"
    mount = mounts(f"hf://{MODEL}", options)
    assert (mount / "h.1.w").read_bytes() == b"\1" * 102
    assert hub.cdn.sent_bytes - sent <= 1 << 20
    assert (mount / "renamed").read_bytes() == arrays()["h.0.w"].tobytes()
    assert (mount / "embed").read_bytes() == arrays()["embed"].tobytes()
    assert mount.unmount() == 0
    hub.add_model(MODEL, {"model.safetensors": archive_of(2)})
    with pytest.raises(MountFailed) as refused:
        mounts(f"hf://{MODEL}", options)
    assert "is not the base of" in refused.value.log


def test_a_delta_of_the_hub_fits_a_copy_of_the_model_on_this_disk(hub, mounts, tmp_path):
    files = sharded()
    hub.add_model(MODEL, files)
    options = f"delta={tmp_path / 'd.safetensors'}"
    mount = mounts(f"hf://{MODEL}", options)
    (mount / "h.1.w").write_bytes(b"\1" * 102)
    assert mount.unmount() == 0
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, data in files.items():
        (copy / name).write_bytes(data)
    mount = mounts(copy / "model.safetensors.index.json", options)
    assert (mount / "h.1.w").read_bytes() == b"\1" * 102
    assert (mount / "embed").read_bytes() == arrays()["embed"].tobytes()
    assert mount.unmount() == 0
    shard = copy / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(MountFailed) as refused:
        mounts(copy / "model.safetensors.index.json", options)
    assert "its files have other bytes" in refused.value.log


@pytest.mark.parametrize("etag, is_version", [('"68f0c1e2-16e360"', False), ('"' + "a" * 32 + '"', True), ('"' + "a" * 64 + '"', True)])
def test_a_short_etag_proves_no_bytes_of_a_base(tmp_path, mounts, etag, is_version):
    """nginx makes it of the file's time in seconds and its size."""
    with served() as server:
        address = server.add("/m.safetensors", archive_of(), etag)
        options = f"delta={tmp_path / 'd.safetensors'}"
        mount = mounts(address, options)
        (mount / "h.1.w").write_bytes(b"\1" * 102)
        assert mount.unmount() == 0
        server.add("/m.safetensors", archive_of(2), etag)
        if is_version:
            assert server.sent_bytes < len(archive_of())
            return
        with pytest.raises(MountFailed) as refused:
            mounts(address, options)
        assert "is not the base of" in refused.value.log


# --- the Hugging Face cache -----------------------------------------------------------------------------------


def put_in_cache(tmp_path, model, commit, files, revision="main"):
    """As hf_hub_download() puts files there."""
    place = tmp_path / "cache" / "huggingface" / "hub" / f"models--{model.replace('/', '--')}"
    for name in ("blobs", "refs", f"snapshots/{commit}"):
        (place / name).mkdir(parents=True, exist_ok=True)
    (place / "refs" / revision).write_text(commit)
    for name, data in files.items():
        blob = place / "blobs" / digest_of(data)
        blob.write_bytes(data)
        (place / "snapshots" / commit / name).symlink_to(f"../../blobs/{blob.name}")
    return place


def test_a_file_in_the_cache_is_not_fetched(hub, mounts, tmp_path):
    files = sharded()
    commit = hub.add_model(MODEL, files)
    put_in_cache(tmp_path, MODEL, commit, {name: files[name] for name in list(files)[:1]})
    for name, array in arrays().items():
        assert stfs("cat", f"hf://{MODEL}", name) == array.tobytes()
    assert not any(digest_of(files["model-00001-of-00002.safetensors"]) in path for path, _, _ in hub.cdn.requests)
    before = (tmp_path / "cache/huggingface/hub/models--org--model/blobs" / digest_of(files["model-00001-of-00002.safetensors"]))
    mount = mounts(f"hf://{MODEL}")
    assert errno_of(open, mount / "embed", "r+b") == errno.EROFS
    assert before.read_bytes() == files["model-00001-of-00002.safetensors"]


def test_a_cache_of_the_users_own_group_is_used(hub, model, tmp_path):
    place = put_in_cache(tmp_path, MODEL, model, {"model.safetensors": archive_of()})
    for path in (place, *place.rglob("*")):
        if not path.is_symlink():
            os.chmod(path, 0o775 if path.is_dir() else 0o664)
    assert stfs("cat", f"hf://{MODEL}", "h.1.w") == arrays()["h.1.w"].tobytes()
    assert hub.cdn.requests == []


@pytest.mark.parametrize("spoil", ["short", "mode", "link", "blobs", "models--org--model"])
def test_a_file_of_the_cache_that_may_be_wrong_is_not_used(hub, model, tmp_path, spoil):
    place = put_in_cache(tmp_path, MODEL, model, {"model.safetensors": archive_of()})
    blob = place / "blobs" / digest_of(archive_of())
    wrong = bytearray(archive_of())
    wrong[-1] ^= 1
    if spoil == "short":
        blob.write_bytes(wrong[:-2])
    elif spoil == "mode":
        blob.write_bytes(wrong)
        blob.chmod(0o666)
    elif spoil in ("blobs", place.name):
        blob.write_bytes(wrong)
        (place / "blobs" if spoil == "blobs" else place).chmod(0o777)
    else:
        (tmp_path / "wrong").write_bytes(wrong)
        blob.unlink()
        blob.symlink_to(tmp_path / "wrong")
    for name, array in arrays().items():
        assert stfs("cat", f"hf://{MODEL}", name) == array.tobytes()


def test_offline_a_model_comes_from_the_cache(hub, mounts, tmp_path, monkeypatch):
    files = sharded()
    commit = hub.add_model(MODEL, files)
    put_in_cache(tmp_path, MODEL, commit, files)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    mount = mounts(f"hf://{MODEL}")
    for name, array in arrays().items():
        assert (mount / name).read_bytes() == array.tobytes()
    assert (mount / ".safetensors" / "pretrained" / "config.json").read_bytes() == CONFIG
    assert stfs("cat", f"hf://{MODEL}@{commit}", "h.1.w") == arrays()["h.1.w"].tobytes()
    assert hub.requests == [] and hub.cdn.requests == []


def test_offline_what_the_cache_lacks_is_said_at_once(hub, tmp_path, monkeypatch):
    files = sharded()
    commit = hub.add_model(MODEL, files)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in stfs("ls", f"hf://{MODEL}", status=1)
    put_in_cache(tmp_path, MODEL, commit, {name: data for name, data in files.items() if "00002-of" not in name})
    assert "model-00002-of-00002.safetensors" in stfs("cat", f"hf://{MODEL}", "h.1.w", status=1)
    assert hub.requests == []


@pytest.mark.parametrize("which", ["hub", "hub/models--org--model", "refs", "refs/main", "blobs", "snapshots", "commit", "inner"])
@pytest.mark.parametrize("way", ["mode", pytest.param("owner", marks=pytest.mark.needs_root)])
def test_offline_a_cache_that_another_user_may_write_names_no_commit(hub, tmp_path, monkeypatch, which, way):
    commit = hub.add_model(MODEL, {"model.safetensors": archive_of()})
    place = put_in_cache(tmp_path, MODEL, commit, {"model.safetensors": archive_of()})
    (place / "snapshots" / commit / "inner").mkdir()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert stfs("cat", f"hf://{MODEL}", "h.1.w") == arrays()["h.1.w"].tobytes()
    spoilt = {"commit": place / "snapshots" / commit, "inner": place / "snapshots" / commit / "inner"}.get(
        which, place.parent.parent / which if which.startswith("hub") else place / which)
    if way == "mode":
        spoilt.chmod(0o777 if spoilt.is_dir() else 0o666)
    else:
        os.chown(spoilt, MALLORY, MALLORY)
    assert f"another user may have made {spoilt}, or may write it" in stfs("ls", f"hf://{MODEL}", status=1)


def test_offline_a_link_names_no_commit(hub, tmp_path, monkeypatch):
    commit = hub.add_model(MODEL, {"model.safetensors": archive_of()})
    place = put_in_cache(tmp_path, MODEL, commit, {"model.safetensors": archive_of()})
    (place / "snapshots").rename(tmp_path / "elsewhere")
    (place / "snapshots").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in stfs("ls", f"hf://{MODEL}", status=1)


@pytest.mark.needs_root
def test_the_cache_in_another_users_mount_is_not_used(hub, model, tmp_path, monkeypatch):
    """Its server reports root as the owner of a file with other bytes."""
    wrong = bytearray(archive_of())
    wrong[-200] ^= 1
    place = put_in_cache(tmp_path, MODEL, model, {"model.safetensors": archive_of()})
    (place / "blobs" / digest_of(archive_of())).write_bytes(wrong)
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    with mirror_mount(mirror, MALLORY, place.parent):
        monkeypatch.setenv("HF_HUB_CACHE", str(mirror))
        for name, array in arrays().items():
            assert stfs("cat", f"hf://{MODEL}", name) == array.tobytes()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))  # without the kept list
        assert f"another user may have made {mirror}" in stfs("ls", f"hf://{MODEL}", status=1)


def test_offline_nothing_is_asked_for_beside_the_model(hub, mounts, tmp_path, monkeypatch):
    files = sharded()
    commit = hub.add_model(MODEL, files)
    place = put_in_cache(tmp_path, MODEL, commit, files)
    (place / "blobs" / digest_of(TOKENIZER)).chmod(0o666)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    mount = mounts(f"hf://{MODEL}")
    pretrained = mount / ".safetensors" / "pretrained"
    assert (pretrained / "config.json").read_bytes() == CONFIG
    assert errno_of(open, pretrained / "tokenizer.json") == errno.ENETUNREACH
    assert hub.requests == []


def test_a_full_disk_keeps_no_bytes_and_stops_no_model(hub, tmp_path, monkeypatch, own_disk_of):
    hub.add_model(MODEL, sharded())
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_disk_of))
    for name, array in arrays().items():
        assert stfs("cat", f"hf://{MODEL}", name) == array.tobytes()


def test_the_commit_is_the_one_of_the_test(hub, model):
    assert model == commit_of(MODEL + "main")
