"""The exception for mesh files, and the message for a missing extra."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = ["MeshError", "require"]


class MeshError(ValueError):
    """A mesh file, its cells or fields cannot be used; the message says which and why."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra of opformer installs it.

    Raises
    ------
    ImportError
        If ``module`` is not installed; the message holds the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module} is needed here and is not installed: pip install 'opformer[{extra}]'"
        ) from error
