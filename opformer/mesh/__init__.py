"""Mesh files with their fields, read and written safely; the only part that knows meshio.

`read_mesh` and `write_mesh` move whole files, `read_field` gives one field as an array at the
points or at the cells, `inspect_path` says what is there, in a file or in a folder. A mesh
is a `meshio.Mesh`.
"""

from opformer.mesh.collection import check_writable_series, series_files, write_series
from opformer.mesh.derived import derived_field, is_derived
from opformer.mesh.duplicates import merge_points
from opformer.mesh.fields import (
    Location,
    blocks,
    field_location,
    field_names,
    field_values,
    flat_axes,
    read_field,
    same_cells,
    top_cells,
    with_fields,
)
from opformer.mesh.folder import listed_files, mesh_files
from opformer.mesh.inspection import inspect_mesh
from opformer.mesh.parts import is_lower_part, part_cells, part_names, part_weights
from opformer.mesh.read import is_mesh_file, read_mesh, read_times, steps_of
from opformer.mesh.report import MeshReport
from opformer.mesh.survey import FolderReport, inspect_path, survey_folder
from opformer.mesh.write import check_writable, write_mesh

__all__ = [
    "FolderReport",
    "Location",
    "MeshReport",
    "blocks",
    "check_writable",
    "check_writable_series",
    "derived_field",
    "field_location",
    "field_names",
    "field_values",
    "flat_axes",
    "inspect_mesh",
    "inspect_path",
    "is_derived",
    "is_lower_part",
    "is_mesh_file",
    "listed_files",
    "merge_points",
    "mesh_files",
    "part_cells",
    "part_names",
    "part_weights",
    "read_field",
    "read_mesh",
    "read_times",
    "same_cells",
    "series_files",
    "steps_of",
    "survey_folder",
    "top_cells",
    "with_fields",
    "write_mesh",
    "write_series",
]
