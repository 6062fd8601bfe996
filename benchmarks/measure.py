"""What the measure buys: the same model, trained and evaluated with it and without.

Both models start from the same parameters and see the same plates, batches and steps; both are
judged by the same integrals. "Without" means that the attention, in training as in evaluation, sees
equal weights: plain softmax attention.

    python benchmarks/measure.py [FOLDER]    (data of examples/plates.py, made if it is not there)
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from opformer import MeshDataset, OperatorTransformer, evaluate, fit

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from demo import TESTS, make_data
from viscoelastic import Unweighted


def main() -> None:
    """Train twice, and print the errors on each mesh size with their ratio to the first."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    if not all((out / name).is_dir() for name in ("train", *TESTS)):
        make_data(out, 300, 12)
    data = MeshDataset(out / "train", inputs=["conductivity", "source"], outputs=["temperature"])
    for name in ("with the measure", "plain softmax"):
        torch.manual_seed(0)
        model = OperatorTransformer(data.dim, data.in_channels, data.out_channels)
        surrogate = fit(
            Unweighted(model) if name == "plain softmax" else model,
            data,
            epochs=20,
            batch_size=3,
            learning_rate=3e-3,
            samples_per_mesh=300,
        )
        print(f"{name}, {torch.get_num_threads()} threads\n")
        print(evaluate(surrogate, *(out / test for test in TESTS)), "\n")


if __name__ == "__main__":
    main()
