# Compares stfs.torch with safetensors.torch. test_reference_torch.py runs it with a Python that has PyTorch: each function below
# is a test, whose name is the argument.
import collections
import errno
import shutil
import sys
import tempfile
import types
from pathlib import Path

import safetensors
import safetensors.torch
import stfs
import stfs.torch
import torch

TYPES = [getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16",
                                           "uint32", "uint64", "bool", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
                                           "float8_e5m2fnuz", "float8_e8m0fnu") if hasattr(torch, name)]
KEYS = (0, -1, 2, slice(0, 2), slice(0, 3), ..., (), (..., 1), (1, ...), (slice(None), slice(1, 3)), (0, slice(None, None, 2)), (0, 1, 2),
        slice(1, None), (slice(None, None, 2), slice(None), slice(1, 4, 2)), (0, 0, 0, 0), "a", 1.5)
KEYS_OF_PYTORCH = (slice(-2, None), slice(0, 100), slice(100, None), slice(1, 0), slice(None, None, -1), slice(None, None, 0), 3, -4, None, [0, 2], [],
                   True, (None, 0), torch.tensor([0, 1]), [True, False, True], (slice(None), [0, 2]), range(2), (..., ...))
DIRECTORY = Path(tempfile.mkdtemp())


def outcome(call):
    try:
        return call()
    except Exception as error:
        return error


def raw(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


def is_same(ours, theirs):
    if isinstance(theirs, Exception):
        return isinstance(ours, stfs.SafetensorError if isinstance(theirs, safetensors.SafetensorError) else type(theirs))
    if isinstance(theirs, torch.Tensor):
        return isinstance(ours, torch.Tensor) and (ours.dtype, ours.shape, ours.device, ours.requires_grad, raw(ours)) == \
            (theirs.dtype, theirs.shape, theirs.device, theirs.requires_grad, raw(theirs))
    if isinstance(theirs, dict):
        return type(ours) is dict and list(ours) == list(theirs) and all(is_same(ours[name], theirs[name]) for name in theirs)
    return type(ours) is type(theirs) and ours == theirs


def check_same(call, named=""):
    ours, theirs = outcome(lambda: call(stfs)), outcome(lambda: call(safetensors))
    assert is_same(ours, theirs), f"{named}: {ours!r} instead of {theirs!r}"
    return ours


def bits(dtype, count=24):
    if dtype == torch.bool:
        return torch.arange(count) % 3 == 0
    return (torch.arange(count * dtype.itemsize if hasattr(dtype, "itemsize") else count * torch.empty(0, dtype=dtype).element_size())
            % 251).to(torch.uint8).view(dtype)


TENSORS = {"m": torch.arange(60.0).reshape(3, 4, 5), "zero": torch.tensor(5.0), "none": torch.zeros(0, 4), "large": torch.arange(100_000.0),
           **{str(dtype): bits(dtype).reshape(2, 3, 4) for dtype in TYPES}}
PATH = str(DIRECTORY / "model.safetensors")
safetensors.torch.save_file(TENSORS, PATH, {"format": "pt"})


def reading():
    for backend in ("mmap", "pread"):
        check_same(lambda package: package.torch.load_file(PATH, backend=backend), backend)
        for framework in ("pt", "torch", "pytorch"):
            check_same(lambda package: package.safe_open(PATH, framework, backend=backend).get_tensors())
        for name in TENSORS:
            check_same(lambda package: package.safe_open(PATH, "pt", backend=backend).get_tensor(name), name)
            if name not in ("none", "zero"):
                check_same(lambda package: package.safe_open(PATH, "pt", backend=backend).get_slice(name)[1:2], name)
        for key in KEYS:
            check_same(lambda package: package.safe_open(PATH, "pt", backend=backend).get_slice("m")[key], f"{backend} {key!r}")
    for key in KEYS_OF_PYTORCH:
        check_same(lambda package: package.safe_open(PATH, "pt").get_slice("m")[key], repr(key))
    # There, F8_E8M0 is a KeyError, and the order is random.
    content = safetensors.torch.save({name: tensor for name, tensor in TENSORS.items() if "e8m0" not in name})
    check_same(lambda package: dict(sorted(package.torch.load(content).items())))
    check_same(lambda package: package.torch.load(content[:-1]))
    assert stfs.load_file(PATH)["m"].equal(TENSORS["m"])


def odd_addresses():
    header = b'{"a":{"dtype":"F32","shape":[30,10],"data_offsets":[0,1200]},"b":{"dtype":"I64","shape":[],"data_offsets":[1200,1208]}}  '
    for padding in range(8):
        path = DIRECTORY / f"odd {padding}"
        path.write_bytes((len(header) + padding).to_bytes(8, "little") + header + b" " * padding + bytes(range(250)) * 4 + bytes(208))
        for backend in ("mmap", "pread"):
            check_same(lambda package: package.torch.load_file(path, backend=backend), padding)
            check_same(lambda package: package.safe_open(path, "pt", backend=backend).get_slice("a")[2:20:3, 1:], padding)
        assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in stfs.torch.load_file(path).values())


def devices():
    for device in ("cpu", None, "xx", "cpu:0", -1, 1.5, "meta", "disk", "auto", "", "cuda:", "cuda:x", torch.device("cpu"), "CPU"):
        check_same(lambda package: package.safe_open(PATH, "pt", device=device).get_tensor("m"), repr(device))
        check_same(lambda package: package.torch.load_file(PATH, device=device)["m"], repr(device))
    for device in ("cuda:0", "cuda", 0, "cuda:99", "xpu", "npu:0"):
        # A device that is not there is found when the first tensor is made.
        assert isinstance(outcome(lambda: stfs.safe_open(PATH, "pt", device=device)), stfs.safe_open)
        ours, theirs = (outcome(lambda: package.torch.load_file(PATH, device=device)["m"]) for package in (stfs, safetensors))
        # The exception is PyTorch's. The reference may ask it for pinned memory first.
        assert is_same(ours, theirs) or isinstance(ours, Exception) and isinstance(theirs, Exception), repr(device)


def writing_into_loaded_tensors():
    before = Path(PATH).read_bytes()
    for backend in ("mmap", "pread"):
        for name in ("m", "large"):
            loaded = stfs.torch.load_file(PATH, backend=backend)
            loaded[name].zero_()
            assert not loaded[name].any() and stfs.torch.load_file(PATH, backend=backend)[name].equal(TENSORS[name])
            tensor = loaded[name].requires_grad_()
            (tensor * 2).sum().backward()
            assert tensor.grad.eq(2).all()
    assert Path(PATH).read_bytes() == before
    # Loaded tensors are saved again: none of them shares memory with another one.
    stfs.torch.save_file(stfs.torch.load_file(PATH), DIRECTORY / "again", {"format": "pt"})
    assert (DIRECTORY / "again").read_bytes() == before
    safetensors.torch.save_file(stfs.torch.load_file(PATH), DIRECTORY / "again", {"format": "pt"})
    assert (DIRECTORY / "again").read_bytes() == before


def saving():
    x = torch.arange(8.0)
    sets = {"all": TENSORS, "nothing": {}, "views that do not overlap": {"a": x[:4], "b": x[4:]}, "empties": {"a": x[:0], "b": x[:0], "c": x},
            "an ordered dict": collections.OrderedDict(b=x, a=x + 1), "a parameter": {"a": torch.nn.Parameter(x)}, "a view": {"a": x[2:6]},
            "one column": {"a": x.reshape(8, 1)}}
    for named, tensors in sets.items():
        for metadata in (None, {}, {"format": "pt"})[:None if tensors else 1]:
            saved = check_same(lambda package: package.torch.save(tensors, metadata), named)
            assert isinstance(saved, bytes), saved
            check_same(lambda package: package.torch.save_file(tensors, DIRECTORY / package.__name__, metadata=metadata), named)
            assert (DIRECTORY / "stfs").read_bytes() == (DIRECTORY / "safetensors").read_bytes() == saved
    stfs.save_file({"a": x}, DIRECTORY / "top")
    assert (DIRECTORY / "top").read_bytes() == safetensors.torch.save({"a": x})


def refusals():
    x = torch.arange(8.0)
    sets = {"transposed": {"a": x.reshape(2, 4).T}, "strided": {"a": x[::2]}, "expanded": {"a": x[:1].expand(3)}, "sparse": {"a": x.to_sparse()},
            "channels last": {"a": torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last)}, "a list": {"a": [1]}, "a number": {"a": 1},
            "same": {"a": x, "b": x}, "overlapping": {"a": x[:5], "b": x[4:]}, "contained": {"a": x, "b": x[2:3], "c": x[6:]},
            "another dtype": {"a": x, "b": x.view(torch.int32)}, "three": {"a": x[:1], "b": x, "c": x[3:4]}, "no dict": [x],
            "a mapping": types.MappingProxyType({"a": x}), "a number as name": {1: x}, "no name": {None: x}, "no text": {"\ud800": x}}
    for named, tensors in sets.items():
        ours = check_same(lambda package: package.torch.save(tensors), named)
        assert isinstance(ours, Exception), named
        check_same(lambda package: package.torch.save_file(tensors, DIRECTORY / "refused"), named)
    assert not (DIRECTORY / "refused").exists()
    ours = outcome(lambda: stfs.torch.save({"a": torch.zeros(2, dtype=torch.complex128)}))  # there: KeyError
    assert isinstance(ours, stfs.SafetensorError), ours
    if hasattr(torch.zeros(1), "untyped_storage"):
        check_same(lambda package: package.torch.save({"a": torch.zeros(2, device="meta")}))
    ours = outcome(lambda: stfs.torch.save_file({"a": x}, DIRECTORY / "none" / "a"))
    assert isinstance(ours, stfs.SaveError) and ours.errno == errno.ENOENT


def views_with_pending_signs():
    # The reference saves the memory: numbers without their sign.
    for tensor in (torch.arange(4, dtype=torch.float32).to(torch.complex64).mul(1j).conj(), torch._neg_view(torch.ones(2))):
        assert stfs.torch.load(stfs.torch.save({"a": tensor}))["a"].equal(tensor.resolve_conj().resolve_neg())


class Tied(torch.nn.Module):
    def __init__(self, swapped=False):
        super().__init__()
        self.first, self.second, self.third = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.third.bias = self.first.bias
        if swapped:
            self.a = self.third


def models():
    torch.manual_seed(0)
    model = Tied()
    for metadata in (None, {"second.weight": "mine"}):
        for package in (stfs, safetensors):
            package.torch.save_model(model, str(DIRECTORY / package.__name__), metadata=None if metadata is None else dict(metadata))
        assert list(stfs.open(DIRECTORY / "stfs").metadata) and \
            dict(stfs.open(DIRECTORY / "stfs").metadata) == dict(stfs.open(DIRECTORY / "safetensors").metadata)
        check_same(lambda package: safetensors.torch.load_file(DIRECTORY / package.__name__))
    for module in (Tied, lambda: Tied(swapped=True), lambda: torch.nn.Linear(3, 3)):
        for strict in (True, False):
            check_same(lambda package: package.torch.load_model(module(), DIRECTORY / "stfs", strict=strict), f"{module} {strict}")
    loaded = Tied()
    stfs.torch.load_model(loaded, DIRECTORY / "safetensors")
    assert all(one.equal(other) for one, other in zip(loaded.state_dict().values(), model.state_dict().values()))
    module = torch.nn.Linear(2, 2)
    module.weight = torch.nn.Parameter(torch.arange(4.0).reshape(2, 2).T)
    check_same(lambda package: package.torch.save_model(module, DIRECTORY / package.__name__))
    assert (DIRECTORY / "stfs").read_bytes() == (DIRECTORY / "safetensors").read_bytes()
    check_same(lambda package: package.torch.save_model(module, DIRECTORY / "no", force_contiguous=False))
    check_same(lambda package: package.torch.load_model(torch.nn.Linear(2, 3), DIRECTORY / "stfs"))
    partial, memory = torch.nn.Module(), torch.zeros(10)
    partial.a, partial.b = torch.nn.Parameter(memory[:6]), torch.nn.Parameter(memory[3:])
    check_same(lambda package: package.torch.save_model(partial, DIRECTORY / "no"))
    metadata = {"mine": "1"}
    stfs.torch.save_model(model, DIRECTORY / "stfs", metadata)
    assert metadata == {"mine": "1"} and not (DIRECTORY / "no").exists()


def pairs_of_four_bits():
    dtype = getattr(torch, "float4_e2m1fn_x2", None)
    if dtype is None:
        return
    tensors = {"a": bits(torch.uint8, 24).view(dtype).reshape(2, 3, 4), "none": torch.empty(2, 0, dtype=torch.uint8).view(dtype)}
    check_same(lambda package: package.torch.save(tensors))
    safetensors.torch.save_file(tensors, DIRECTORY / "f4")
    for backend in ("mmap", "pread"):  # the reference fails for some shapes
        assert is_same(dict(sorted(stfs.torch.load_file(DIRECTORY / "f4", backend=backend).items())), tensors)
    with stfs.safe_open(DIRECTORY / "f4", "pt", backend="pread") as archive:
        assert archive.get_slice("a").get_shape() == [2, 3, 8]
    for backend in ("mmap", "pread"):  # an index counts elements, of which the shape tells, and never pairs
        part = stfs.safe_open(DIRECTORY / "f4", "pt", backend=backend).get_slice("a")
        assert is_same(part[1, :, 2:6], tensors["a"][1, :, 1:3])
        assert isinstance(outcome(lambda: part[0, 0, 1:4]), stfs.SafetensorError)


def tensors_of_stfs():
    model = stfs.open(PATH)
    for name, tensor in TENSORS.items():
        assert is_same(model[name].torch(), tensor), name
        assert is_same(model[name].copy().torch(), tensor), name
    assert model["m"][1:, ::2, -1].torch().equal(TENSORS["m"][1:, ::2, -1])
    assert model.upload("m", device="cpu")["m"].torch().equal(TENSORS["m"])
    content = b'{"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    (DIRECTORY / "f6").write_bytes(len(content).to_bytes(8, "little") + content + b"abc")
    assert isinstance(outcome(lambda: stfs.open(DIRECTORY / "f6")["a"].torch()), TypeError)
    assert isinstance(outcome(lambda: stfs.torch.load_file(DIRECTORY / "f6")), stfs.SafetensorError)


if __name__ == "__main__":
    {name: made for name, made in list(vars().items()) if isinstance(made, types.FunctionType)}[sys.argv[1]]()
    shutil.rmtree(DIRECTORY)
    print("same", end="")
