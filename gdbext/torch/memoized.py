"""Caches the results of methods, in the object that they belong to."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any, TypeVar

    Method = TypeVar("Method", bound=Callable[..., object])


def memoized(method: Method) -> Method:
    """Decorate a method so that its object keeps each result, by the positional arguments (hashable ones).

    functools.cache on a method would keep every object alive. An exception is not kept: the next call tries again.
    """
    attribute = f"_results_of_{method.__name__}"

    @wraps(method)
    def call_once(self: Any, *arguments: Hashable) -> object:
        """The kept result, else that of ``method``."""
        results: dict[tuple[Hashable, ...], object] | None = self.__dict__.get(attribute)
        if results is None:
            results = self.__dict__[attribute] = {}
        if arguments not in results:
            results[arguments] = method(self, *arguments)
        return results[arguments]

    return cast("Method", call_once)
