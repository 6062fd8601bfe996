r"""The extension point: four hooks, one for each place where position can enter the kernel.

.. math:: p(t,s) = \frac{R_t q_t\cdot R_s k_s}{\sqrt{e}} + f^q_t\cdot f^k_s + b(t,s),

with q and k made of tokens that were embedded at their positions. A new encoding overrides the
hooks it needs and declares its ``symmetry``; :func:`opformer.testing.check_encoding` holds it to
both.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from opformer._fused import join
from opformer.domain import Domain
from opformer.integral import Factors

__all__ = ["SYMMETRIES", "Compose", "PositionalEncoding"]

# From the smallest group to the largest; each holds those before it.
SYMMETRIES = ("none", "translation", "SE(d)", "E(d)")
HOOKS = ("embed", "rotate", "factors", "bias")


class PositionalEncoding(nn.Module):
    """Base class; every hook does nothing until it is overridden.

    ``embed`` acts once, on the tokens a model starts from; the other three act inside every
    attention, and a model gives each of its blocks a copy with parameters of its own. So that no
    copy holds idle parameters, those of ``embed`` and of the others belong in two encodings, joined
    by :class:`Compose`. Constructor arguments are stored under their own names, to be saved.

    Attributes
    ----------
    symmetry : "none", "translation", "SE(d)" or "E(d)"
        The motions of the domain that leave the kernel unchanged. What is promised here is tested.
    pair_channels : int
        How many numbers ``bias`` holds for each pair of a target and a source, where that is more
        than one for each head: the width of a network, for instance. The chunks of targets are made
        smaller by it, so that memory stays bounded.
    pairwise : bool
        Whether what it says of a target and a source depends on these two alone. If on the other
        sources too, it would look ahead: attentions with a ``causal_axis`` refuse it.
    """

    symmetry: str = "none"
    pair_channels: int = 1
    pairwise: bool = True

    def embed(self, features: Tensor, domain: Domain) -> Tensor:
        """Tokens (..., n, c) that know where they are: (..., n, c)."""
        return features

    def rotate(self, x: Tensor, domain: Domain) -> Tensor:
        """Queries at the targets and keys at the sources, (..., h, n, e), each by its position."""
        return x

    def factors(self, target: Domain, source: Domain, tokens: Tensor) -> Factors | None:
        """Channels (..., h, n, r) and (..., h, m, r) whose product is the bias of the log-kernel.

        ``tokens`` (..., n, c) are the target's features, for kernels that depend on them.
        """
        return None

    def bias(self, target: Domain, source: Domain) -> Tensor | None:
        """The bias of the log-kernel, (..., h, n, m) or broadcast to it, for a chunk of targets."""
        return None

    @property
    def hooks(self) -> frozenset[str]:
        """Names of the hooks that this class overrides."""
        base = PositionalEncoding
        return frozenset(h for h in HOOKS if getattr(type(self), h) is not getattr(base, h))

    def only(self, *hooks: str) -> PositionalEncoding:
        """The part of this encoding that enters by one of these hooks; maybe ``Compose()``."""
        return self if self.hooks & set(hooks) else Compose()


class Compose(PositionalEncoding):
    """Several encodings at once: embeddings and rotations follow one another, biases add up.

    The symmetry is that of the least symmetric one. ``Compose()`` sees no position at all.
    """

    encodings: Sequence[PositionalEncoding]

    def __init__(self, *encodings: PositionalEncoding) -> None:
        super().__init__()
        self.encodings = nn.ModuleList(encodings)  # type: ignore[assignment]

    @property
    def symmetry(self) -> str:  # type: ignore[override]
        """The smallest of the groups."""
        groups = (e.symmetry for e in self.encodings)
        return min(groups, key=SYMMETRIES.index, default=SYMMETRIES[-1])

    @property
    def pair_channels(self) -> int:  # type: ignore[override]
        """Of all the parts together: a gradient needs them all."""
        return sum(e.pair_channels for e in self.encodings if "bias" in e.hooks)

    @property
    def pairwise(self) -> bool:  # type: ignore[override]
        """Whether all the parts are."""
        return all(e.pairwise for e in self.encodings)

    @property
    def hooks(self) -> frozenset[str]:
        """All the hooks that some part overrides."""
        return frozenset().union(*(e.hooks for e in self.encodings))

    def only(self, *hooks: str) -> PositionalEncoding:
        """Those parts that enter by one of these hooks."""
        return Compose(*(e.only(*hooks) for e in self.encodings if e.hooks & set(hooks)))

    def embed(self, features: Tensor, domain: Domain) -> Tensor:
        """Each embedding after the other."""
        for encoding in self.encodings:
            features = encoding.embed(features, domain)
        return features

    def rotate(self, x: Tensor, domain: Domain) -> Tensor:
        """Each rotation after the other."""
        for encoding in self.encodings:
            x = encoding.rotate(x, domain)
        return x

    def factors(self, target: Domain, source: Domain, tokens: Tensor) -> Factors | None:
        """The factor channels side by side: their products add up."""
        parts = [f for e in self.encodings if (f := e.factors(target, source, tokens)) is not None]
        if not parts:
            return None
        fq, fk = zip(*parts, strict=True)
        return join(*fq), join(*fk)

    def bias(self, target: Domain, source: Domain) -> Tensor | None:
        """The sum of the biases."""
        parts = [b for e in self.encodings if (b := e.bias(target, source)) is not None]
        return sum(parts[1:], parts[0]) if parts else None
