"""Modules as plain data: the class and the arguments it was made with; a checkpoint holds no code.

A module that stores each constructor argument under its own name can be described and built again.
Building looks the class up among the modules that are already imported: a file never decides what
is imported.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np
from torch import nn

__all__ = ["build", "describe"]


def describe(module: nn.Module) -> dict[str, Any]:
    """The class of a module and the arguments it was made with, as plain data.

    Raises
    ------
    TypeError
        If an argument is hidden in ``**``, not stored under its own name, or neither plain nor a
        module, or if the class cannot be found again.

    Examples
    --------
    >>> from opformer.encodings import Rotary
    >>> describe(Rotary(2, 4, 16))["arguments"]["wavelengths"]
    [0.5, 8.0]
    """
    cls = type(module)
    name = f"{cls.__module__}:{cls.__qualname__}"
    if _find(name) is not cls:
        raise TypeError(f"{cls.__qualname__} must be defined at the top of a module to be saved")
    arguments = {}
    for parameter in _parameters(cls):
        if not hasattr(module, parameter):
            raise TypeError(f"{cls.__name__} must store its argument {parameter!r} under that name")
        where = f"{cls.__name__}.{parameter}"
        arguments[parameter] = _plain(getattr(module, parameter), where)
    return {"class": name, "arguments": arguments}


def build(config: dict[str, Any]) -> nn.Module:
    """Make the module that ``config`` describes, with fresh parameters.

    Raises
    ------
    ValueError
        If its class is not a module that has been imported.
    """
    cls = _find(config["class"])
    if cls is None:
        raise ValueError(
            f"class {config['class']!r} is not known: import the module that defines it, then load "
            "(what is defined in a script, __main__, cannot be found: move it into a module)"
        )
    arguments = {name: _made(value) for name, value in config["arguments"].items()}
    kinds = _parameters(cls)
    rest = [x for name in kinds if kinds[name] is _VARIADIC for x in arguments.pop(name)]
    return cls(*rest, **arguments)


_VARIADIC = inspect.Parameter.VAR_POSITIONAL


def _find(name: str) -> type[nn.Module] | None:
    """The class "module:qualified.name" if that module is imported and holds it."""
    module, _, path = name.partition(":")
    cls: Any = sys.modules.get(module)
    for part in path.split("."):
        cls = getattr(cls, part, None)
    return cls if isinstance(cls, type) and issubclass(cls, nn.Module) else None


def _parameters(cls: type) -> dict[str, Any]:
    """Names and kinds of the constructor's arguments."""
    if cls.__init__ is nn.Module.__init__:  # type: ignore[misc]
        return {}
    parameters = inspect.signature(cls).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        raise TypeError(f"{cls.__name__} must name all arguments of its constructor to be saved")
    return {p.name: p.kind for p in parameters}


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, nn.ModuleList | list | tuple):
        return [_plain(v, where) for v in value]
    if isinstance(value, nn.Module):
        return describe(value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{where} must be a number, a string, a list or a module to be saved, "
        f"got {type(value).__name__}"
    )


def _made(value: Any) -> Any:
    if isinstance(value, dict):
        return build(value)
    return [_made(v) for v in value] if isinstance(value, list) else value
