"""The main job, end to end: heat conduction on plates with random holes.

1. Solve 300 plates of 200 to 650 nodes, and unseen ones on meshes of up to ten times the nodes.
2. Fit a surrogate from conductivity and heat source to temperature.
3. Evaluate it on each mesh size, with the measure in the attention and with all weights equal.
4. Write the predictions for ParaView, and draw them.

Everything lands in one folder, demo/ by default. ``--quick`` goes through the motions in seconds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from opformer import MeshDataset, OperatorTransformer, evaluate, fit, plotting, write_mesh
from opformer.evaluation import Evaluation
from opformer.surrogate import Surrogate
from plates import write

# Folder: nodes from, nodes to, strength of the grading. The test sets are the same plates.
TESTS = {
    "test_400": (400, 400, 1.0),
    "test_1300": (1300, 1300, 1.0),
    "test_4000": (4000, 4000, 1.0),
    "test_4000_graded": (4000, 4000, 2.0),
}
UNSEEN = 10_000  # seeds of the test plates start here


def make_data(out: Path, train: int, test: int, workers: int = 2) -> None:
    """Solve the plates; densities vary in training, or the network tunes itself to one."""
    write(out / "train", range(train), nodes=(200, 650), grading=1.0, workers=workers)
    for name, (low, high, grading) in TESTS.items():
        seeds = range(UNSEEN, UNSEEN + test)
        write(out / name, seeds, nodes=(low, high), grading=grading, workers=workers)


def train(out: Path, epochs: int) -> Surrogate:
    """Fit on the training folder, into out/run."""
    data = MeshDataset(out / "train", inputs=["conductivity", "source"], outputs=["temperature"])
    torch.manual_seed(0)
    model = OperatorTransformer(data.dim, data.in_channels, data.out_channels)
    return fit(
        model,
        data,
        out=out / "run",
        epochs=epochs,
        batch_size=3,
        learning_rate=3e-3,
        samples_per_mesh=300,
    )


def predict(surrogate: Surrogate, out: Path) -> None:
    """Write predictions of the first unseen plate on every mesh, and draw three of them."""
    meshes = []
    for name in TESTS:
        mesh = surrogate.predict(sorted((out / name).glob("*.vtu"))[0])
        write_mesh(out / f"prediction_{name}.vtu", mesh)
        meshes.append(mesh)
    picture = out / "prediction.png"
    plotting.plot_fields(meshes[:3], "temperature", "temperature_predicted", picture)


def check(evaluation: Evaluation) -> None:
    """The claim of the demo: accurate on unseen plates, flat under refinement, by the measure."""
    coarse, *finer = (row["fields"]["temperature"] for row in evaluation.summary())
    assert coarse["relative_l2"] <= 0.06, coarse
    for fine in finer:
        assert fine["relative_l2"] <= 1.10 * coarse["relative_l2"], fine
        assert fine["relative_l2_uniform"] >= 1.5 * fine["relative_l2"], fine


def main() -> None:
    """Run all of it and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--quick", action="store_true", help="few plates and epochs, no claims")
    options = parser.parse_args()
    plates, unseen, epochs = (12, 2, 2) if options.quick else (300, 12, 20)
    began = time.perf_counter()
    make_data(options.out, plates, unseen, workers=0 if options.quick else 2)
    print(f"data solved after {time.perf_counter() - began:.0f} s")
    surrogate = train(options.out, epochs)
    print(f"surrogate fitted after {time.perf_counter() - began:.0f} s")
    evaluation = evaluate(surrogate, *(options.out / name for name in TESTS), uniform=True)
    print(evaluation)
    evaluation.write_json(options.out / "evaluation.json")
    plotting.plot_errors(evaluation, options.out / "errors.png")
    predict(surrogate, options.out)
    print(f"pictures and predictions are in {options.out}/ ({time.perf_counter() - began:.0f} s)")
    if not options.quick:
        check(evaluation)


if __name__ == "__main__":
    main()
