"""Attention as a kernel integral over meshes: surrogates whose error holds on finer ones."""

from opformer import encodings
from opformer.attention import Attention
from opformer.augment import RandomPoses
from opformer.data import MeshDataset
from opformer.domain import Domain, stack
from opformer.equivariant_model import EquivariantTransformer
from opformer.errors import MeshError
from opformer.evaluation import evaluate
from opformer.frames import FrameAveraging
from opformer.grids import grid
from opformer.integral import kernel_integral
from opformer.layout import Layout
from opformer.mesh import read_mesh, write_mesh
from opformer.model import OperatorTransformer
from opformer.refinement import refinement_study
from opformer.sample import Sample, collate
from opformer.sequence import Transformer
from opformer.standardize import Standardizer
from opformer.surrogate import Surrogate, load
from opformer.training import fit
from opformer.transformer import Decoder, Encoder

__all__ = [
    "Attention",
    "Decoder",
    "Domain",
    "Encoder",
    "EquivariantTransformer",
    "FrameAveraging",
    "Layout",
    "MeshDataset",
    "MeshError",
    "OperatorTransformer",
    "RandomPoses",
    "Sample",
    "Standardizer",
    "Surrogate",
    "Transformer",
    "collate",
    "encodings",
    "evaluate",
    "fit",
    "grid",
    "kernel_integral",
    "load",
    "read_mesh",
    "refinement_study",
    "stack",
    "write_mesh",
]
__version__ = "0.1.0"
