from collections.abc import Callable, Sequence
from typing import Any, final

from numpy import int64
from numpy.typing import NDArray

__all__ = [
    "BufferPool",
    "DtypeSpec",
    "FieldSpec",
    "LayoutSpec",
    "Lease",
    "Plan",
    "__version__",
    "collate",
    "forked",
]

__version__: str

@final
class FieldSpec:
    """How a response-aligned field is read and written. Made once for a field, not once a call."""

    def __new__(
        cls,
        key: str,
        name: str,
        *,
        per_row: bool = False,
        refuses_nan: bool = False,
        any_length: bool = False,
        dtype: str = "float32",
    ) -> FieldSpec: ...
    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def per_row(self) -> bool: ...
    @property
    def refuses_nan(self) -> bool: ...
    @property
    def any_length(self) -> bool: ...
    @property
    def dtype(self) -> str: ...
    def with_dtype(self, dtype: str) -> FieldSpec: ...

@final
class LayoutSpec:
    """A layout and the widths that do not come from the data."""

    def __new__(
        cls,
        name: str,
        pad_to: int | None,
        max_prompt_len: int | None,
        max_response_len: int | None,
        pad_to_multiple_of: int,
    ) -> LayoutSpec: ...
    @property
    def name(self) -> str: ...
    @property
    def pad_to(self) -> int | None: ...
    @property
    def max_prompt_len(self) -> int | None: ...
    @property
    def max_response_len(self) -> int | None: ...
    @property
    def pad_to_multiple_of(self) -> int: ...

@final
class DtypeSpec:
    """The dtypes of outputs that are no fields."""

    def __new__(
        cls,
        input_ids: str = "int64",
        attention_mask: str = "int64",
        response_mask: str = "int64",
    ) -> DtypeSpec: ...
    @property
    def input_ids(self) -> str: ...
    @property
    def attention_mask(self) -> str: ...
    @property
    def response_mask(self) -> str: ...

@final
class Lease:
    """A batch's own hold on its memory."""

    def claim(self) -> Lease | None: ...
    def names(self) -> list[str]: ...
    def is_last(self) -> bool: ...
    def arrays(self) -> list[tuple[str, NDArray[Any]]]: ...

@final
class BufferPool:
    """Recycles the memory of batches."""

    def __new__(cls, max_bytes: int) -> BufferPool: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def idle_bytes(self) -> int: ...
    @property
    def live_bytes(self) -> int: ...
    def clear(self) -> None: ...

@final
class Plan:
    """What the rows of a batch are made of and where they lie. Immutable; holds no token."""

    @property
    def num_rows(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def response_width(self) -> int: ...
    @property
    def longest_row(self) -> int: ...
    @property
    def prompt_lens(self) -> NDArray[int64]: ...
    @property
    def response_lens(self) -> NDArray[int64]: ...
    def to_dict(self) -> dict[str, NDArray[int64]]: ...
    @classmethod
    def from_dict(cls, tables: dict[str, NDArray[int64]]) -> Plan: ...

def forked() -> None: ...
def collate(
    prompts: Any,
    responses: Any,
    pad_token_id: int,
    fields: Sequence[tuple[Any, FieldSpec]],
    layout: LayoutSpec,
    dtypes: DtypeSpec,
    close: Callable[[], Lease] | None,
    pool: BufferPool | None,
) -> tuple[Plan, list[tuple[str, NDArray[Any]]], Lease]: ...
