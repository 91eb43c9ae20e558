"""Weight sync: versions of weights that training publishes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Union

from . import _stfs
from ._model import Model, open
from ._progress import Progress, shown

if TYPE_CHECKING:
    StrPath = Union[str, "os.PathLike[str]"]

_KINDS = ("applied", "seeded", "unfinished", "withdrawn")
_ENCODINGS = ("xor", "overwrite")


class PullEvent(NamedTuple):
    """One thing that a pull has done or found."""

    #: "applied", "seeded" (a full version, whose files were copied), "unfinished" (a newer version is not whole yet, or
    #: is left out because of its owner) or "withdrawn" (a version went away while it was read).
    kind: str
    #: "000042"; empty if it is not known.
    version: str
    why: str
    #: Of "applied": the names of the tensors whose bytes have changed.
    changed: list[str]
    changed_bytes: int


def pull(model: StrPath, published: StrPath, *, to: int | None = None,
         on_event: Callable[[PullEvent], object] | None = None, durability: str = "power", wait: int = 10,
         threads: int = 0, progress: Progress | None = None) -> int | None:
    """Brings a model up to a version that training has published, as `stfs pull` does.

    Each version is applied whole or not at all. Tensors of the model that are open show the new bytes.

    model       an archive, an index or a directory; a directory that does not exist is made from the newest full version
    published   the directory of the versions weight_v000042
    to          None: the newest version that is whole
    on_event    is called with a PullEvent after each version; its exception ends the pull behind that version
    durability  "power", or "process": the change survives a killed process only
    wait        seconds for which to wait for locks
    threads     0: one for each processor
    progress    True for a bar of tqdm, or a function: it is called now and then with the done and the total number of
                bytes of the version that is read or copied; (0, 0) while the pull waits for another one

    An exception of progress, and Ctrl-C, end the pull at once and are passed on: the model keeps its version, and the next
    pull continues from there. A commit that has begun is finished first.

    Returns the version that the model has then, or None. Raises OSError: EAGAIN if `to` is not whole yet, EINVAL for a wrong
    base or a damaged diff, by the name of the tensor, EBUSY.

    >>> stfs.pull("checkpoint", "/mnt/shared/published", on_event=lambda event: print(event.version, len(event.changed)))
    """
    if durability not in ("power", "process"):
        raise ValueError('durability is "power" or "process"')
    if to is not None and to < 0:
        raise ValueError("to is a version, from 0 on")

    def tell(kind: int, version: str, why: str, changed: list[str], changed_bytes: int) -> None:
        if on_event is not None:
            on_event(PullEvent(_KINDS[kind], version, why, changed, changed_bytes))

    with shown(progress, "pulling") as show:
        return _stfs.pull(model, published, to, threads, durability == "process", wait if wait > 0 else -1, tell, show)


def publish(old: StrPath | Model, new: StrPath | Model, published: StrPath, version: int, *, base: int | None = None,
            encoding: str = "xor", checksum: str = "xxh3-128", threads: int = 0, since: int | None = None,
            progress: Progress | None = None) -> int | None:
    """Publishes a version: the changes from the model `old` to `new`, as `stfs diff --encoding` does.

    old, new   paths as for open(), or open models, with the same names, dtypes and shapes
    published  the directory of the versions; is made if it is missing
    base       the number of the version of `old`; None: version - 1
    encoding   "xor" or "overwrite"
    checksum   "xxh3-128", "adler32", or "blake3" where its library is installed
    since      if `new` is a mount: tensors that have not changed since this generation are assumed to be as in `old`
    progress   True for a bar of tqdm, or a function: it is called now and then with the done and the total number of bytes
               of `new` that are read

    An exception of progress, and Ctrl-C, end the call at once and are passed on: nothing is published.

    Returns the generation of the mount up to which all changes are in the version, which is `since` of the next one; None if
    `new` is no mount. Programs may write to a mount during the call: each tensor is published as it was at one moment.

    Raises ValueError if `since` is given and `new` is no mount, and OSError: EINVAL if the models differ in more than bytes,
    EEXIST if the version is published already, EBUSY if a tensor of the mount changes faster than it is read.

    >>> generation = stfs.publish("last", "/mnt/model", "/mnt/shared/published", 43, since=generation)
    """
    if encoding not in _ENCODINGS:
        raise ValueError('encoding is "xor" or "overwrite"')
    if not isinstance(old, Model):
        with open(old) as old:
            return publish(old, new, published, version, base=base, encoding=encoding, checksum=checksum, threads=threads,
                           since=since, progress=progress)
    if not isinstance(new, Model):
        with open(new) as new:
            return publish(old, new, published, version, base=base, encoding=encoding, checksum=checksum, threads=threads,
                           since=since, progress=progress)
    with shown(progress, "publishing") as show:
        return old._handle.publish(new._handle, (os.fspath(published), version, base, _ENCODINGS.index(encoding), checksum,
                                                 threads, since, show))
