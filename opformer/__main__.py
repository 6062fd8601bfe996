"""``python -m opformer``: the command line."""

from opformer.cli import main

raise SystemExit(main())
