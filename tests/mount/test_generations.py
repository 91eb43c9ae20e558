# Generations of `stfs serve`: a change of the archive makes a new generation, and leases keep the old one.
import os

import archive_file
import numpy as np
from lease_client import NEWER, STUCK, Lease, query
from mounted import eventually
from served_archive import TENSORS, change_b, directory, path, serve, source, stfs  # noqa: F401


def test_a_put_leads_to_a_new_generation_and_the_old_one_stays(serve, source, path, directory):
    server = serve(source).ready()
    lease = Lease(path)
    change_b(source, directory)
    event = server.event()
    assert (event["event"], event["generation"]) == ("generation", 2)
    assert lease.wait_news() == (NEWER, 2)
    assert lease["b"] == TENSORS["b"].tobytes()
    newer = Lease(path)
    assert (newer.generation, newer["b"]) == (2, b"changed")
    assert newer["w"] == TENSORS["w"].tobytes()
    assert [(row["generation"], row["leases"]) for row in query(path)["generations"]] == [(1, 1), (2, 1)]
    # The tensor that was not changed is the same memory.
    assert newer.inode_of("w") == lease.inode_of("w") != newer.inode_of("b")
    assert len(server.arenas()) == 2
    lease.close()
    assert eventually(lambda: len(query(path)["generations"]) == 1)
    assert newer["w"] == TENSORS["w"].tobytes()


def test_a_commit_through_a_mount_leads_to_a_new_generation(serve, source, path, mounts):
    mount = mounts(source)
    server = serve(mount.path).ready()
    lease = Lease(path)
    assert lease["b"] == TENSORS["b"].tobytes()
    (mount / "b").write_bytes(b"changed")
    assert lease.wait_news() == (NEWER, 2)
    assert Lease(path)["b"] == b"changed"
    assert server.event()["generation"] == 2


def test_an_archive_that_is_replaced_is_served_anew_with_other_tensors(serve, source, path, directory):
    serve(source).ready()
    lease = Lease(path)
    other = archive_file.save_with_reference(directory / "n.safetensors", {"new": np.arange(5, dtype="i8")})
    os.replace(other, source)
    assert lease.wait_news() == (NEWER, 2)
    newer = Lease(path)
    assert set(newer.tensors) == {"new"}
    assert set(lease.tensors) == set(TENSORS)


def test_a_failed_reload_keeps_the_old_generation_and_says_so(serve, source, path, directory):
    server = serve(source).ready()
    lease = Lease(path)
    whole = source.read_bytes()
    (directory / "bad").write_bytes(b"this is no archive at all")
    os.replace(directory / "bad", source)
    kind, why = lease.wait_news()
    assert kind == STUCK and str(source) in why
    event = server.event()
    assert (event["event"], event["why"]) == ("stuck", why)
    assert eventually(lambda: "the previous generation stays; the upload is retried" in server.errors)
    assert query(path)["stuck"] == why
    late = Lease(path)
    assert (late.generation, late["b"]) == (1, TENSORS["b"].tobytes())
    assert "stuck       " in stfs("serve", "--status", path).stdout

    (directory / "good").write_bytes(whole)
    os.replace(directory / "good", source)
    assert lease.wait_news() == (NEWER, 2)
    assert Lease(path)["b"] == TENSORS["b"].tobytes()
    assert query(path)["stuck"] is None


def test_a_deleted_archive_stays_served(serve, source, path):
    serve(source).ready()
    lease = Lease(path)
    source.unlink()
    kind, why = lease.wait_news()
    assert kind == STUCK and "m.safetensors" in why
    assert Lease(path)["w"] == TENSORS["w"].tobytes()


def test_the_memory_of_an_arena_is_freed_when_the_last_side_lets_go(serve, directory, path):
    size = 64 << 20
    source = archive_file.save_with_reference(directory / "big.safetensors",
                                              {"t": np.arange(size // 8, dtype="u8"), "b": TENSORS["b"]})

    def shared_kib():
        for line in open("/proc/meminfo"):
            if line.startswith("Shmem:"):
                return int(line.split()[1])

    server = serve(source).ready()
    assert sum(server.arenas()) >= size
    lease = Lease(path)
    (directory / "raw").write_bytes(bytes(size))
    stfs("put", source, "t", directory / "raw")
    assert lease.wait_news() == (NEWER, 2)
    assert sum(server.arenas()) >= 2 * size
    held = shared_kib()
    lease.close()
    assert eventually(lambda: sum(server.arenas()) < size + (size >> 2))
    # Other programs use shared memory, too: only most of it must be back.
    assert eventually(lambda: shared_kib() < held - (size >> 11))
    newer = Lease(path)
    server.kill()
    held = shared_kib()
    assert len(newer["t"]) == size
    newer.close()
    assert eventually(lambda: shared_kib() < held - (size >> 11))
