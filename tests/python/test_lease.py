# stfs.attach: tensors of another process. tests/mount/test_serve.py tests the server; this file tests the Python interface.
import asyncio
import gc
import hashlib
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import lease_client
import mounted
import numpy as np
import pytest

import stfs
from archive_file import save_with_reference


@pytest.fixture
def path():
    """Paths of sockets are short; pytest's own directories are not."""
    directory = Path(tempfile.mkdtemp(prefix="stfs-lease-"))
    yield directory / "s"
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def server(path, archive_path):
    server = lease_client.Server(path, archive_path).ready()
    yield server
    wrong = server.finish()
    assert wrong is None, wrong


def leases(path):
    return lease_client.query(path)["leases"]


def change(archive_path, name, data):
    subprocess.run([lease_client.STFS, "put", archive_path, name, "-"], input=data, check=True, capture_output=True)


def test_every_tensor_is_there_and_none_is_copied(server, path, archive_path, tensors):
    lease = stfs.attach(path)
    assert set(lease) == set(tensors) and len(lease) == len(tensors)
    assert (lease.generation, lease.sources, lease.devices) == (1, [str(archive_path)], ["cpu"])
    with stfs.open(archive_path) as model:
        for name, tensor in lease.items():
            assert (tensor.name, tensor.dtype, tensor.shape) == (name, model[name].dtype, model[name].shape)
            assert tensor.tobytes() == tensors[name].tobytes()
            assert tensor.device == "cpu" and not tensor.is_mapped and tensor.is_read_only
            assert tensor.archive == "" and (not tensor.nbytes or tensor.address % 256 == 0)
    assert np.shares_memory(np.from_dlpack(lease["layers.0.weight"]), lease["layers.0.weight"].numpy())
    assert repr(lease) == f"<stfs.Lease {len(tensors)} tensors on cpu>"
    with pytest.raises(KeyError):
        lease["none"]
    # Two leases share memory.
    with open("/proc/self/maps") as maps:
        before = [line.split()[4] for line in maps if "safetensorsfs arena" in line]
    other = stfs.attach(path)
    with open("/proc/self/maps") as maps:
        after = [line.split()[4] for line in maps if "safetensorsfs arena" in line]
    assert len(after) == len(before) + 1 and len(set(after)) == 1
    del other


def test_a_lease_lasts_until_the_last_array_is_gone(server, path, tensors):
    with stfs.attach(path) as lease:
        array = np.from_dlpack(lease["layers.0.weight"])
    with pytest.raises(ValueError):
        lease.fileno()
    with pytest.raises(ValueError):
        lease.news()
    del lease
    gc.collect()
    assert [row["pid"] for row in leases(path)] == [os.getpid()]
    assert array.tobytes() == tensors["layers.0.weight"].tobytes()
    del array
    gc.collect()
    assert mounted.eventually(lambda: leases(path) == [])


def test_news_of_a_newer_generation(server, path, archive_path, tensors):
    lease = stfs.attach(path)
    assert lease.news() == (0, "", False)
    assert select.select([lease], [], [], 0)[0] == []
    new = np.ascontiguousarray(tensors["layers.0.weight"][::-1])
    change(archive_path, "layers.0.weight", new.tobytes())
    assert select.select([lease], [], [], 20)[0] == [lease]
    assert lease.news() == stfs.News(2, "", False)
    assert lease.news() == (0, "", False)
    newer = lease.refresh()
    assert newer.generation == 2
    assert newer["layers.0.weight"].tobytes() == new.tobytes()
    assert lease["layers.0.weight"].tobytes() == tensors["layers.0.weight"].tobytes()
    assert newer["embed"].tobytes() == lease["embed"].tobytes()
    assert sorted(row["generation"] for row in leases(path)) == [1, 2]


def test_news_can_be_waited_for(server, path, archive_path, tensors):
    lease = stfs.attach(path)
    began = time.monotonic()
    assert lease.news(timeout=0.2) == (0, "", False)
    assert time.monotonic() - began >= 0.19
    threading.Timer(0.2, change, (archive_path, "embed", tensors["embed"].tobytes())).start()
    assert lease.news(timeout=None).newer_generation == 2

    async def wait():
        readable = asyncio.Event()
        asyncio.get_running_loop().add_reader(lease, readable.set)
        change(archive_path, "embed", tensors["embed"].tobytes())
        await asyncio.wait_for(readable.wait(), 20)
        asyncio.get_running_loop().remove_reader(lease)

    asyncio.run(wait())
    assert lease.news().newer_generation == 3


def test_a_renewed_lease_has_what_is_new_and_keeps_the_rest(server, path, archive_path, tensors):
    lease, old = stfs.attach(path), stfs.attach(path)
    assert (lease.version, lease.wait(timeout=0), lease.renew()) == (None, 0, [])
    unchanged, changed = lease["embed"], lease["layers.0.weight"]
    array = changed.numpy()
    new = np.ascontiguousarray(tensors["layers.0.weight"][::-1])
    threading.Timer(0.2, change, (archive_path, "layers.0.weight", new.tobytes())).start()
    assert lease.wait(timeout=20) == 2
    assert lease.generation == 1
    assert lease.renew() == ["layers.0.weight"]
    assert lease.generation == 2 and lease.news() == (0, "", False)
    assert lease["layers.0.weight"].tobytes() == new.tobytes()
    # Unchanged tensors are the same objects with the same memory, so arrays that were made of them stay valid.
    assert lease["embed"] is unchanged
    assert lease["layers.0.weight"] is not changed and lease["layers.0.weight"].address != changed.address
    assert set(lease) == set(tensors) and lease.on("cpu").keys() == tensors.keys()
    # Tensors that were taken before the renewal are unchanged, and so are other leases.
    assert array.tobytes() == changed.tobytes() == tensors["layers.0.weight"].tobytes()
    assert old.generation == 1 and old["layers.0.weight"].tobytes() == tensors["layers.0.weight"].tobytes()
    assert sorted(row["generation"] for row in leases(path)) == [1, 2]
    old.close()
    del old
    gc.collect()
    assert mounted.eventually(lambda: [row["generation"] for row in lease_client.query(path)["generations"]] == [2])
    server.kill()
    with pytest.raises(ConnectionResetError, match="the server has ended"):
        lease.renew()
    with pytest.raises(ConnectionResetError):
        lease.wait(timeout=20)
    assert lease.generation == 2 and lease["embed"].tobytes() == tensors["embed"].tobytes()
    lease.close()
    for call in (lease.renew, lease.wait):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_renewal_of_one_thread_stops_no_other_thread(server, path, archive_path, tensors):
    lease = stfs.attach(path)
    change(archive_path, "embed", tensors["embed"].tobytes())
    assert lease.wait(timeout=20) == 2
    os.kill(server.pid, signal.SIGSTOP)
    try:
        renewing = threading.Thread(target=lambda: lease.renew(timeout=60), daemon=True)
        renewing.start()
        time.sleep(0.2)  # until it has probably begun to wait
        asking = threading.Thread(target=lambda: (lease.fileno(), lease.news()), daemon=True)
        asking.start()
        time.sleep(0.2)
        assert renewing.is_alive()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    renewing.join(20)
    asking.join(20)
    assert not renewing.is_alive() and not asking.is_alive() and lease.generation == 2


def test_why_there_is_no_newer_generation(server, path, archive_path):
    lease = stfs.attach(path)
    os.truncate(archive_path, 20)
    news = lease.news(timeout=20)
    assert news.newer_generation == 0 and str(archive_path) in news.why_stuck and not news.is_server_gone


def test_a_killed_server(server, path, tensors):
    lease = stfs.attach(path)
    server.kill()
    assert lease.news(timeout=20).is_server_gone
    assert lease.news().is_server_gone
    with pytest.raises(ValueError):
        lease.fileno()
    assert lease["embed"].tobytes() == tensors["embed"].tobytes()
    with pytest.raises(ConnectionRefusedError, match="server of this socket has died"):
        lease.refresh()


def test_errors(path, archive_path):
    with pytest.raises(FileNotFoundError, match="no server uses this socket: start `stfs serve"):
        stfs.attach(path)
    path.write_text("")
    with pytest.raises(ConnectionRefusedError, match="is not a socket"):
        stfs.attach(path)
    path.unlink()
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError):
            stfs.attach(path, timeout=timeout)
    with pytest.raises(TypeError):
        stfs.attach(3)
    with pytest.raises(TypeError):
        stfs._stfs.Lease()


def test_a_server_that_is_still_uploading(path, tmp_path):
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listening:
        listening.bind(str(path))
        listening.listen()
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="still uploading"):
            stfs.attach(path, timeout=0.3)
        assert 0.25 < time.monotonic() - began < 10


def test_writing_ends_the_process_and_changes_nothing(server, path, tensors):
    died = mounted.run_python(
        "import sys; sys.path.insert(0, sys.argv[1]); import ctypes, stfs\n"
        "tensor = stfs.attach(sys.argv[2])['embed']\n"
        "try: memoryview(tensor)[0] = 1\n"
        "except TypeError: print('refused', flush=True)\n"
        "ctypes.memset(tensor.address, 1, 1)\n", Path(stfs.__file__).parents[1], path)
    assert (died.returncode, died.stdout) == (-signal.SIGSEGV, "refused\n"), died.stderr
    assert stfs.attach(path)["embed"].tobytes() == tensors["embed"].tobytes()
    assert mounted.eventually(lambda: len(leases(path)) == 0)


def test_torch_shares_it(server, path, tensors, torch_python):
    python, environment = torch_python
    done = subprocess.run([python, "-c", """
import hashlib, sys, torch, stfs
lease = stfs.attach(sys.argv[1])
tensor = torch.from_dlpack(lease["layers.0.weight"])
print(tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9))
print(tensor.data_ptr() == lease["layers.0.weight"].address)
del lease
print(hashlib.sha256(tensor.numpy().tobytes()).hexdigest())
""", path], capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    due = hashlib.sha256(tensors["layers.0.weight"].tobytes()).hexdigest()
    is_new, is_shared, digest = done.stdout.split()
    # Before DLPack 1.0 a tensor cannot say that its memory is read-only, so an older torch gets a copy.
    assert (is_shared, digest) == (is_new, due)
    assert mounted.eventually(lambda: len(leases(path)) == 0)


def test_attaching_takes_no_time_and_no_memory(path, tmp_path):
    size = 256 << 20
    source = save_with_reference(tmp_path / "large.safetensors", {"t": np.arange(size // 8, dtype="u8")})
    server = lease_client.Server(path, source).ready()
    try:
        def own_bytes():
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

        before = own_bytes()
        seconds = []
        for _ in range(5):
            began = time.monotonic()
            lease = stfs.attach(path)
            seconds.append(time.monotonic() - began)
        assert own_bytes() - before < 16 << 20
        if not mounted.is_sanitized():
            assert min(seconds) < 0.05
        assert lease["t"].numpy()[-1] == size // 8 - 1
    finally:
        server.finish()
