"""What the tests of the mesh readers share."""

from __future__ import annotations

from pathlib import Path

import meshio
import numpy as np
import pytest

from opformer import MeshError, read_mesh
from opformer.mesh import blocks
from opformer.quadrature import boundary, lumping, node_weights


def measure(mesh: meshio.Mesh) -> float:
    return float(lumping(mesh.points, blocks(mesh)).sum())


def boundary_weights(mesh: meshio.Mesh) -> np.ndarray:
    """The measure of the boundary, lumped at the nodes; zero inside."""
    facets = boundary(blocks(mesh))
    return node_weights(mesh.points, facets) if facets else np.zeros(len(mesh.points))


def refusal(path: Path, **options) -> str:
    """The message of the error that reading ends with: one line that begins with the file."""
    with pytest.raises(MeshError) as caught:
        read_mesh(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message
