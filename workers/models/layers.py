"""A list of modules whose type says what they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from torch import nn

_Layer = TypeVar("_Layer", bound=nn.Module)


class Layers(nn.ModuleList, Generic[_Layer]):
    """torch's ModuleList, of modules of one kind: the same names, and nothing more at run time."""

    if TYPE_CHECKING:

        def __init__(self, modules: Iterable[_Layer] | None = None) -> None: ...

        def __iter__(self) -> Iterator[_Layer]: ...

        @overload
        def __getitem__(self, idx: slice) -> Layers[_Layer]: ...
        @overload
        def __getitem__(self, idx: int) -> _Layer: ...
        def __getitem__(self, idx: int | slice) -> _Layer | Layers[_Layer]: ...
