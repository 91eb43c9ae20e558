"""The tensors of .safetensors archives, without copying them.

    import stfs

    with stfs.open("model.safetensors") as model:       # an archive, an index, its directory, a mount
        weight = model["lm_head.weight"]                # nothing is read yet
        weight.dtype, weight.shape                      # 'BF16', (32000, 4096)
        torch.from_dlpack(weight)                       # shares the archive's pages
        np.from_dlpack(weight[:10, ::2])                # so do slices
        model.metadata["format"]
        weights = model.upload(device="cuda:0")         # or "cpu": into memory of a device, in one pass
        torch.from_dlpack(weights["lm_head.weight"])    # on the GPU; nothing is copied there

    with stfs.open("model.safetensors", "r+") as model:  # changes the archive, in place
        model["lm_head.weight"] = array                 # NumPy, PyTorch, the buffer protocol
        with model.transaction():                       # all of these changes, or none
            del model["lm_head.bias"]
            model.rename({"a": "b", "b": "a"})
            model.metadata["author"] = "me"

    stfs.diff("model.safetensors", "tuned.safetensors").changed     # the changed tensors, with statistics
    stfs.open("model.safetensors", delta="tuned.delta.safetensors")     # the tuned model; "r+": changes go there

    stfs.pull("checkpoint", "/mnt/shared/published")    # the versions that training has published

    from stfs import safe_open                          # as of the package safetensors; stfs.torch, stfs.numpy and
    from stfs.torch import load_file, save_file         # stfs.flax have the functions of its modules

    lease = stfs.attach("/tmp/model.sock")              # tensors of `stfs serve`: in milliseconds, without a copy
    torch.from_dlpack(lease["lm_head.weight"])

A tensor keeps its memory: a tensor, and arrays made of it, stay valid after the model is closed.

The memory consists of the archive's own pages. Commits of other programs show in it; `Model.generation` reports
changes. If another program truncates the file or its disk fails, an access to a missing page ends the process with SIGBUS,
also in NumPy and PyTorch. `Tensor.copy()`, `tobytes()`, `read_into()` and `Model.upload()` raise OSError (EIO) instead.
The module installs no signal handler.

The module raises KeyError for an unknown tensor, IndexError for an index out of range, OSError with the errno for
files, and `FormatError`, a ValueError and a SafetensorError, for a file that is not an archive. If a journal beside an
archive cannot be read (another user or a newer version has written it), a newer commit may not be shown: `open()` warns
with `NotShownWarning`.
"""

from ._diff import Change, Diff, Form, Statistics, diff
from ._files import load_file, save_file
from ._lease import Lease, News, attach
from ._metadata import Metadata
from ._model import Model, NotShownWarning, open
from ._progress import Progress
from ._safe_open import SafeSlice, safe_open
from ._save import SaveError, create
from ._stfs import FormatError, SafetensorError
from ._stfs import version as __version__
from ._sync import PullEvent, publish, pull
from ._tensor import Tensor
from ._upload import Device, Resident, Upload, UploadReport, devices, why_no_cuda

__all__ = ["Change", "Device", "Diff", "Form", "FormatError", "Lease", "Metadata", "Model", "News",
           "NotShownWarning", "Progress", "PullEvent", "Resident", "SafeSlice", "SafetensorError", "SaveError",
           "Statistics", "Tensor", "Upload", "UploadReport", "attach", "create", "devices", "diff", "load_file",
           "open", "publish", "pull", "safe_open", "save_file", "why_no_cuda"]
