"""Tensors in the memory of devices, by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ._tensor import Tensor


class OnDevices(Mapping[str, Tensor]):
    """Tensors by their names. For a tensor with copies on several devices: the copy on the first device.

    `on()` has the other copies.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        self._take(tensors)

    def _take(self, tensors: list[Tensor]) -> None:
        """Replaces all tensors by these."""
        self._on: dict[str, dict[str, Tensor]] = {}
        self._first: dict[str, Tensor] = {}
        for tensor in tensors:
            self._on.setdefault(tensor.device, {})[tensor.name] = tensor
            self._first.setdefault(tensor.name, tensor)

    def __getitem__(self, name: str) -> Tensor:
        return self._first[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)

    # The comparison of a Mapping would compare all tensors.
    __eq__ = object.__eq__

    def __hash__(self) -> int:
        return object.__hash__(self)

    @property
    def devices(self) -> list[str]:
        """The devices that hold a tensor."""
        return list(self._on)

    def on(self, device: str) -> dict[str, Tensor]:
        """Returns the tensors on one device. Raises KeyError if there are none."""
        return dict(self._on[device])

    def __repr__(self) -> str:
        return f"<stfs.{type(self).__name__} {len(self)} tensors on {', '.join(self.devices) or 'no device'}>"
