"""The manual: the Markdown pages beside this file and the docstrings of the package."""

from importlib.metadata import version as installed_version

project = "opformer"
author = "The opformer developers"
copyright = "2026, The opformer developers"
release = version = installed_version("opformer")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
napoleon_google_docstring = False
# Types are prose here, "Tensor, shape (..., n, d)": no letter of them is a reference.
napoleon_use_param = False
napoleon_use_rtype = False
# And a word of such a type that two classes have as an attribute is no ambiguous reference.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = "opformer"
