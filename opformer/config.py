"""Modules as plain data: the class and its constructor arguments, so that a checkpoint holds no code.

A module that stores each constructor argument under its own name can be described and built again. Building looks the
class up among the modules that are already imported: a file never decides what is imported.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from torch import nn

__all__ = ["build", "describe"]


def describe(module: nn.Module) -> dict[str, Any]:
    """The class of a module and the arguments it was made with, as strings, numbers, lists and dicts.

    Raises
    ------
    TypeError
        If an argument is not stored under its own name, or is neither plain nor a module.

    Examples
    --------
    >>> from opformer.encodings import Rotary
    >>> describe(Rotary(2, 4, 16))["arguments"]["wavelengths"]
    [0.5, 8.0]
    """
    cls = type(module)
    arguments = {}
    for name in _parameters(cls):
        if not hasattr(module, name):
            raise TypeError(f"{cls.__name__} must store its constructor argument {name!r} under that name")
        arguments[name] = _plain(getattr(module, name), f"{cls.__name__}.{name}")
    return {"class": f"{cls.__module__}:{cls.__qualname__}", "arguments": arguments}


def build(config: dict[str, Any]) -> nn.Module:
    """Make the module that ``config`` describes, with fresh parameters.

    Raises
    ------
    ValueError
        If its class is not a module that has been imported.
    """
    module, _, name = config["class"].partition(":")
    cls: Any = sys.modules.get(module)
    for part in name.split("."):
        cls = getattr(cls, part, None)
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise ValueError(f"class {config['class']!r} is not known: import the module that defines it, then load")
    arguments = {k: _made(v) for k, v in config["arguments"].items()}
    positional = [k for k, kind in _parameters(cls).items() if kind is inspect.Parameter.VAR_POSITIONAL]
    rest = [value for name in positional for value in arguments.pop(name)]
    return cls(*rest, **arguments)


def _parameters(cls: type) -> dict[str, Any]:
    parameters = list(inspect.signature(cls).parameters.values())
    return {p.name: p.kind for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, nn.ModuleList | list | tuple):
        return [_plain(v, where) for v in value]
    if isinstance(value, nn.Module):
        return describe(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{where} must be a number, a string, a list or a module to be saved, got {type(value).__name__}")


def _made(value: Any) -> Any:
    if isinstance(value, dict):
        return build(value)
    return [_made(v) for v in value] if isinstance(value, list) else value
