"""The `__metadata__` of a model, as a dict whose changes go to the files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Change = Callable[[str, "str | None"], None]
_NOTHING = object()


class Metadata(dict[str, str]):
    """The pairs as they were when `Model.metadata` was read. A change of it changes the model, as one edit.

    >>> model.metadata["author"] = "me"
    >>> del model.metadata["title"]
    """

    def __init__(self, pairs: dict[str, str], change: Change) -> None:
        super().__init__(pairs)
        self._change = change

    def __setitem__(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError("keys and values of the metadata are str")
        self._change(key, value)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._change(key, None)
        super().pop(key, None)

    def pop(self, key: str, default: Any = _NOTHING) -> Any:
        if key not in self and default is not _NOTHING:
            return default
        value = self[key]
        del self[key]
        return value

    def setdefault(self, key: str, default: str = "") -> str:
        if key not in self:
            self[key] = default
        return self[key]

    def _refuse(self, *arguments: Any, **keywords: Any) -> Any:
        raise TypeError("set or delete the keys one by one, in Model.transaction() to change them as one")

    update = clear = popitem = __ior__ = _refuse  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    def copy(self) -> dict[str, str]:
        """Returns a dict that is independent of the model."""
        return dict(self)
