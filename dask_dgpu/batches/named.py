"""The attributes of objects that code names; nothing is called to find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

Names = frozenset[str]

IMPLIED: Names = frozenset({"__array__", "__getitem__"})
"""Methods that code calls without their names."""


def attributes(value: Any, names: Names) -> Iterator[Any]:
    """Yield the attributes of an object, a class or a module that have these names.

    Of an object that code calls, but whose ``__call__`` is no function of Python, yield all, and of
    one with a ``__getattr__`` what that names too.
    """
    if isinstance(value, ModuleType):
        yield from named(vars(value), names)
    elif isinstance(value, type):
        yield from _of_class(value, names | {"__init__"}, value)
    else:
        own, called = own_attributes(value), "__call__" in names and callable(value)
        is_opaque = called and not isinstance(of_class(value, "__call__"), FunctionType)
        missing = of_class(value, "__getattr__")
        if isinstance(missing, FunctionType):
            names |= names_in(missing.__code__)
        yield from own.values() if is_opaque else named(own, names)
        yield from _of_class(type(value), names | IMPLIED, value)


def own_attributes(value: Any) -> dict[str, Any]:
    """Return what an object holds itself, in its ``__dict__`` and its slots."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        for name, each in vars(kind).items():
            if isinstance(each, MemberDescriptorType):
                with suppress(AttributeError):  # not yet set
                    found.setdefault(name, each.__get__(value))
    return {**found, **dict_of(value)}


def dict_of(value: Any) -> Mapping[str, Any]:
    """Return the ``__dict__`` of an object, empty if it has none, or one that is computed."""
    found = of_class(value, "__dict__")
    is_stored = isinstance(found, GetSetDescriptorType | MemberDescriptorType)
    return found.__get__(value) if is_stored else {}


def of_class(value: Any, name: str) -> Any:
    """Return an attribute of a value's class, ``None`` if it has none of this name."""
    kinds = map(vars, type(value).__mro__)
    return next((kind[name] for kind in kinds if name in kind), None)


def named(values: Mapping[str, Any], names: Names) -> Iterator[Any]:
    """Yield the values that have these names."""
    return (values[name] for name in names & values.keys())


@lru_cache(4096)
def names_in(code: CodeType) -> Names:
    """Return the names that code has, functions within it included."""
    within = (each for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(code.co_names).union(*map(names_in, within))


def _of_class(kind: type, names: Names, owner: Any) -> Iterator[Any]:
    for each in kind.__mro__:
        yield from (_bound(found, owner) for found in named(vars(each), names))


def _bound(attribute: Any, owner: Any) -> Any:
    """Return the functions among the attributes of a class, and of properties, as methods."""
    match attribute:
        case (
            (FunctionType() as function)
            | property(fget=FunctionType() as function)
            | cached_property(func=FunctionType() as function)
            | classmethod(__func__=FunctionType() as function)
        ):
            return MethodType(function, owner)
        case staticmethod():
            return attribute.__func__
    return attribute
