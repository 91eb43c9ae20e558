# PyTorch takes tensors by DLPack, whichever Python here has it: shared memory, the right types and values.
import json
import subprocess

PROGRAM = r"""
import gc, hashlib, json, sys, torch, stfs
said = {"torch": torch.__version__}
with stfs.open(sys.argv[1]) as model:
    taken = {}
    for name, tensor in model.items():
        try:
            taken[name] = torch.from_dlpack(tensor)
        except (RuntimeError, BufferError, TypeError) as error:
            if tensor.dtype not in ("U16", "U32", "U64"):  # newer than some of the versions that are about
                raise
    maps = [line for line in open("/proc/self/maps") if line.rstrip().endswith(sys.argv[1])]
    said["large maps"] = len(maps)
    weight = model["layers.0.weight"]
    bits = [torch.from_dlpack(weight[3:200:7, ::2]), torch.from_dlpack(weight)[3:200:7, ::2]]
    said["slice"] = bits[0].contiguous().view(torch.int32).equal(bits[1].contiguous().view(torch.int32))  # no NaN is equal
    own = weight.copy()
    said["own is shared"] = torch.from_dlpack(own).data_ptr() == own.address
said["types"] = {name: str(tensor.dtype) for name, tensor in taken.items()}
said["shapes"] = {name: list(tensor.shape) for name, tensor in taken.items()}
said["sums"] = {}
for name, tensor in taken.items():
    storage = bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
    said["sums"][name] = hashlib.sha256(storage).hexdigest()
changed = taken["layers.0.weight"]
changed.zero_()
said["changed"] = float(changed.abs().sum())
del taken, changed, tensor, weight, bits, own
gc.collect()
said["maps left"] = sum(sys.argv[1] in line for line in open("/proc/self/maps"))
print(json.dumps(said))
"""


def test_torch_takes_every_tensor(torch_python, archive_path, tensors):
    import hashlib

    before = archive_path.read_bytes()
    python, environment = torch_python
    done = subprocess.run([python, "-c", PROGRAM, archive_path], capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {"layers.0.weight", "embed", "scalar", "empty", "odd"} <= set(said["sums"])
    for name, digest in said["sums"].items():
        assert digest == hashlib.sha256(tensors[name].tobytes()).hexdigest(), name
        assert said["shapes"][name] == list(tensors[name].shape)
    for name, dtype in {"embed": "torch.bfloat16", "dtype.F16": "torch.float16", "dtype.C64": "torch.complex64",
                        "dtype.I64": "torch.int64", "scalar": "torch.float32"}.items():
        assert said["types"][name] == dtype
    # A torch with DLPack 1.0 shares the model's two maps; an older torch adds one map for each of the three large tensors.
    assert said["large maps"] in (2, 5)
    assert said["slice"] and said["own is shared"] and said["changed"] == 0 and said["maps left"] == 0
    assert archive_path.read_bytes() == before
