# Reads an edited archive with the reference library.
import numpy as np
from safetensors import safe_open


def stored(path):
    """What the reference library reads: ({name: array}, metadata). Fillers are left out."""
    with safe_open(path, "np") as archive:
        return {name: archive.get_tensor(name) for name in archive.keys() if not name.startswith("__safetensorsfs.free.")}, archive.metadata()


def check(path, due, metadata=None):
    tensors, found = stored(path)
    assert tensors.keys() == due.keys()
    for name, array in due.items():
        array = np.asarray(array)
        assert (tensors[name].dtype, tensors[name].shape) == (array.dtype, array.shape), name
        assert tensors[name].tobytes() == array.tobytes(), name
    if metadata is not None:
        assert found == metadata
