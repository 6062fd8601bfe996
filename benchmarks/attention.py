"""What the measure costs: weighted attention against plain scaled_dot_product_attention.

Claims: the weights cost little time and no (n, n) array; a Gaussian kernel as factor
channels takes less time and memory than as a dense bias, and scales to sizes where that does not;
the past of a time grid, by time and with weights, costs no more than attention to all times.

    python benchmarks/attention.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from _measure import in_fresh_process, paired, peak_memory

from opformer import Domain, kernel_integral
from opformer.causal import Past
from opformer.encodings import GaussianBias

HEADS, WIDTH = 4, 16


def inputs(n: int) -> tuple[list[torch.Tensor], Domain]:
    """Random q, k, v of one sample, and a domain whose weights spread over three decades."""
    generator = torch.Generator().manual_seed(n)
    qkv = [torch.randn(1, HEADS, n, WIDTH, generator=generator) for _ in range(3)]
    weights = 10 ** (3 * torch.rand(1, n, generator=generator, dtype=torch.float64))
    return qkv, Domain(torch.rand(1, n, 2, generator=generator), weights)


def variants(n: int, *, backward: bool) -> dict[str, Callable[[], object]]:
    """The same attention: plain, weighted, with a Gaussian kernel in two forms, of the past."""
    (q, k, v), domain = inputs(n)
    gaussian = GaussianBias(2, HEADS).requires_grad_(False)
    tokens, times = torch.zeros(1, n, 1), torch.arange(float(n))[None]

    def dense() -> torch.Tensor:
        fq, fk = gaussian.factors(domain, domain, tokens)
        return kernel_integral(q, k, v, domain.weights, bias=fq @ fk.mT, chunk=n)

    def factorised() -> torch.Tensor:
        factors = gaussian.factors(domain, domain, tokens)
        return kernel_integral(q, k, v, domain.weights, factors=factors)

    def causal() -> torch.Tensor:
        past = Past(times, times, domain.weights)
        return kernel_integral(q, k, v, domain.weights, past=past)

    forward = {
        "plain": lambda: F.scaled_dot_product_attention(q, k, v),
        "weighted": lambda: kernel_integral(q, k, v, domain.weights),
        "gaussian": factorised,
        "gaussian, dense bias": dense,
        "torch, is_causal": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "weighted, causal": causal,
    }
    if not backward:
        return forward
    for x in (q, k, v):
        x.requires_grad_()
    return {name: lambda f=f: f().sum().backward() for name, f in forward.items()}


def main() -> None:
    """Print the ratios; with arguments NAME N BACKWARD, the memory of one variant instead."""
    if len(sys.argv) > 1:
        name, n, backward = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
        print(peak_memory(variants(n, backward=backward)[name]))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, CPU, float32,")
    print(f"1 sample, {HEADS} heads of {WIDTH} channels; medians, ratios pair by pair\n")
    print(f"{'n':>6}  {'pass':8}  {'variant':22}  {'seconds':>8}  {'/ plain':>8}  {'MiB':>8}")
    for n, repeats in ((1024, 21), (4096, 9), (16384, 3)):
        for backward in (False, True):
            runs = variants(n, backward=backward)
            for name, run in runs.items():
                if "dense" in name and n > 4096:
                    continue
                time, ratio = paired(run, runs["plain"], repeats)
                memory = in_fresh_process(name, str(n), str(backward))
                step = "fwd+bwd" if backward else "forward"
                print(f"{n:6}  {step:8}  {name:22}  {time:8.4f}  {ratio:8.2f}  {memory:8.0f}")


if __name__ == "__main__":
    main()
