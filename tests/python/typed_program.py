# A program of the module's users, for the checkers of types (test_types.py): nothing runs it.
from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import numpy as np
import stfs
import stfs.numpy


def reads(path: Path) -> None:
    with stfs.safe_open(path, framework="np", device="cpu", backend="mmap") as archive:
        names: list[str] = archive.keys() + archive.offset_keys()
        metadata: Optional[dict[str, str]] = archive.metadata()
        part = archive.get_slice(names[0])
        shape: list[int] = part.get_shape()
        dtype: str = part.get_dtype()
        row: Any = part[0:2, ..., -1]
    arrays: dict[str, np.ndarray[Any, Any]] = stfs.numpy.load_file(path)
    content: bytes = stfs.numpy.save(arrays, metadata)
    stfs.numpy.save_file(arrays, path, {"shape": str(shape), "dtype": dtype}, durability="process", progress=True)
    arrays = stfs.numpy.load(content)
    print(row)


def changes(path: str) -> None:
    with stfs.create(path, metadata={"a": "b"}) as model, model.transaction():
        model["a"] = np.zeros(3)
        model.rename("a", "b")
        model.metadata["author"] = "me"
    try:
        stfs.save_file({"a": np.zeros(3)}, path, progress=lambda done_bytes, total_bytes: print(done_bytes / total_bytes))
    except stfs.SaveError as error:
        number: Optional[int] = error.errno
        print(number)
    except stfs.SafetensorError:
        pass
    tensor: stfs.Tensor = stfs.open(path)["a"]
    array: np.ndarray[Any, Any] = tensor[1:].numpy()
    sizes: tuple[int, ...] = tensor.shape
    for change in stfs.diff(path, path).changed.values():
        if change.statistics is not None:
            print(array, sizes, change.statistics.largest_difference)


def is_wrong(path: str) -> None:
    stfs.safe_open(path)  # WRONG: no framework
    stfs.numpy.save_file({"a": np.zeros(3)}, path, {"a": 1})  # WRONG: metadata are text
    stfs.open(path)["a"].shap  # WRONG: there is no such attribute
