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

    lease = stfs.attach("/tmp/model.sock")              # what `stfs serve` keeps: in milliseconds, without a copy
    torch.from_dlpack(lease["lm_head.weight"])

A tensor keeps what it needs: it, and what was made of it, go on living when the model is closed.

Memory is the archive's own pages. So what others commit to the archive shows in it (`Model.generation` tells), and
where somebody cuts the file short, or its disk fails, touching what is gone ends the process with SIGBUS, whoever touches
it: NumPy, PyTorch or the program. Who can't trust the file uses `Tensor.copy()`, `tobytes()`, `read_into()` or
`Model.upload()`, which raise OSError (EIO) instead. The module installs no signal handler.

Errors are Python's own: KeyError for a tensor that is not there, IndexError for a place outside of it, OSError with
the right errno for files, and `FormatError`, a ValueError, for a file that is no archive. Where a journal beside an
archive can't be read here (another user's, of a newer version), a newer commit may not be shown: `open()` warns, with
`NotShownWarning`.
"""

from ._lease import Lease, News, attach
from ._model import Model, NotShownWarning, open
from ._stfs import FormatError
from ._stfs import version as __version__
from ._tensor import Tensor
from ._upload import Device, Resident, Upload, UploadReport, devices, why_no_cuda

__all__ = ["Device", "FormatError", "Lease", "Model", "News", "NotShownWarning", "Resident", "Tensor", "Upload",
           "UploadReport", "attach", "devices", "open", "why_no_cuda"]
