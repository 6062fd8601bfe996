r"""The encoder-decoder transformer of 2017, whole, on domains with a measure.

.. math:: (u, \mu),\ (y|_{s\le t}, \nu) \;\mapsto\; \mathrm{project}\;
   D\bigl(y|_{s\le t},\, E(u)\bigr)(t)

An encoder E reads the source u, and a decoder D what has been written so far, y up to t, to say
what comes next. A sentence is a function on the times 0, 1, 2, … under the counting measure, and
padding has measure zero; any other times and weights will do as well, and fields instead of tokens.
Reference: Vaswani et al., arXiv:1706.03762.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opformer.attention import KeyValues
from opformer.autoregressive import AutoregressiveDecoder
from opformer.causal import continued
from opformer.domain import Domain
from opformer.embedding import Embedding, token_domain
from opformer.encodings import PositionalEncoding, Sinusoidal
from opformer.transformer import Encoder

__all__ = ["State", "Transformer"]


@dataclass(frozen=True, eq=False)
class State:
    """Where a decoder stands: keys and values for each of its blocks.

    ``memory`` is what it reads of the encoded source, once for all; ``past`` what it has heard of
    the target so far, None at the start.
    """

    memory: list[KeyValues]
    past: list[KeyValues] | None = None


class Transformer(nn.Module):
    r"""The model of 2017: embeddings, positions, encoder, autoregressive decoder, projection.

    Defaults are those of the base model (Post-LN, ReLU, sinusoids), without dropout; the two
    embeddings and the projection, one matrix there, are three. What the options add is newer.

    Parameters
    ----------
    source_channels, target_channels : int
        Words of the vocabularies, or channels of fields.
    out_channels : int, optional
        Logits; those of the target's words by default.
    channels, heads, layers, hidden : int
        Width of the tokens, kernels per attention, blocks of encoder and of decoder, inner width of
        the feed-forward.
    encoding : PositionalEncoding, optional
        ``Sinusoidal(1, channels)`` by default. One that enters the kernel enters all three
        attentions: source and target then share their coordinates.
    norm_first, qk_norm : bool
    activation : "relu", "gelu" or "swiglu"
        Of the blocks.
    causal_axis : int
    atoms : bool
        What orders the target's domain, and whether its points are tokens or nodes of a time grid;
        see :class:`opformer.Attention`.

    Examples
    --------
    >>> model = Transformer(10, 12, channels=16, heads=2, layers=1, hidden=32)
    >>> source, target = torch.randint(10, (3, 7)), torch.randint(12, (3, 5))
    >>> model(source, target).shape
    torch.Size([3, 5, 12])
    >>> state = model.encode(source)
    >>> first, state = model.step(state, target[:, :1])  # token by token, nothing made twice
    >>> second, state = model.step(state, target[:, 1:2])
    """

    encoding: PositionalEncoding

    def __init__(
        self,
        source_channels: int,
        target_channels: int,
        out_channels: int | None = None,
        *,
        channels: int = 512,
        heads: int = 8,
        layers: int = 6,
        hidden: int = 2048,
        encoding: PositionalEncoding | None = None,
        norm_first: bool = False,
        qk_norm: bool = False,
        activation: str = "relu",
        causal_axis: int = 0,
        atoms: bool = True,
    ) -> None:
        super().__init__()
        self.source_channels, self.target_channels = source_channels, target_channels
        self.out_channels = target_channels if out_channels is None else out_channels
        self.channels, self.heads, self.layers, self.hidden = channels, heads, layers, hidden
        self.norm_first, self.qk_norm, self.activation = norm_first, qk_norm, activation
        self.causal_axis, self.atoms = causal_axis, atoms
        encoding = Sinusoidal(1, channels) if encoding is None else encoding
        # Kept for its description, out of the module tree: the copies below have the parameters.
        object.__setattr__(self, "encoding", encoding)
        stack: dict[str, Any] = {"encoding": encoding, "hidden": hidden, "qk_norm": qk_norm}
        stack |= {"norm_first": norm_first, "activation": activation}
        self.source_embedding = Embedding(source_channels, channels)
        self.source_position = deepcopy(encoding.only("embed"))
        self.encoder = Encoder(layers, channels, heads, **stack)
        self.target_embedding = Embedding(target_channels, channels)
        self.target_position = deepcopy(encoding.only("embed"))
        self.decoder = AutoregressiveDecoder(
            layers, channels, heads, causal_axis=causal_axis, atoms=atoms, **stack
        )
        self.project = nn.Linear(channels, self.out_channels)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_domain: Domain | None = None,
        target_domain: Domain | None = None,
    ) -> Tensor:
        """What comes next after each token of the target, from it and those not later than it.

        Parameters
        ----------
        source : Tensor, integer tokens (..., m) or floating fields (..., m, source_channels)
        target : Tensor, integer tokens (..., n) or floating fields (..., n, target_channels)
            Given from the start on, as the decoder would have written them. Where a domain has
            measure zero its tokens or fields may hold anything.
        source_domain, target_domain : Domain of m, or n, points, optional
            Times and weights; those of :func:`token_domain` by default.

        Returns
        -------
        Tensor, shape (..., n, out_channels)

        Raises
        ------
        ValueError
            On unknown tokens, or a domain of other axes than its tokens.
        """
        return self.step(self.encode(source, source_domain), target, target_domain)[0]

    def encode(self, source: Tensor, domain: Domain | None = None) -> State:
        """Read the source, once for any number of steps."""
        domain = token_domain(_there(source)) if domain is None else domain
        _check("source_domain", domain, _there(source).shape)
        x = _read(source, domain, self.source_embedding, self.source_position)
        return State(self.decoder.key_values(self.encoder(x, domain), domain))

    def step(
        self, state: State, target: Tensor, domain: Domain | None = None
    ) -> tuple[Tensor, State]:
        """What comes next after each of the new tokens, or fields, of the target.

        Nothing is made again that an earlier step has made, and the steps together say what the
        call says in one: that is the step that takes the whole target.

        Parameters
        ----------
        state : State
            Of :meth:`encode`, or of the step before.
        target : Tensor
            The new tokens (..., n), or fields (..., n, target_channels).
        domain : Domain, optional
            All points of the target so far, the n new ones last. By default the new ones are tokens
            after the last time so far, one unit apart.

        Returns
        -------
        Tensor, shape (..., n, out_channels), and the state after this step

        Raises
        ------
        ValueError
            As the call, and if a new point is not later than those that have been heard, or they
            are not what they were.
        """
        new, past = _there(target), state.past
        if domain is None and not self.atoms:
            raise ValueError("nodes of a time grid need a target_domain, with their weights")
        domain = _continued(past, new) if domain is None else domain
        before = past[0].source.size if past else 0
        _check("target_domain", domain, (*new.shape[:-1], before + new.shape[-1]))
        read = state.memory[0].source.weights.shape[:-1] if state.memory else new.shape[:-1]
        if read != new.shape[:-1]:
            raise ValueError(
                f"target must have the batch axes {tuple(read)} of the source, got "
                f"{tuple(target.shape)}: expand the smaller one"
            )
        at = domain
        if past:
            at = continued(past[0].source, domain, self.causal_axis, atoms=self.atoms)
        x = _read(target, at, self.target_embedding, self.target_position)
        x, past = self.decoder.run(x, domain, state.memory, past)
        return self.project(x), State(state.memory, past)

    @torch.no_grad()
    def generate(
        self,
        source: Tensor,
        source_domain: Domain | None = None,
        *,
        start: int,
        end: int,
        length: int,
    ) -> Tensor:
        """Write tokens, each the likeliest after those before it, until every sample has ended.

        Parameters
        ----------
        source, source_domain
            As in the call.
        start : int
            The token before the first.
        end : int
            The token after the last; a sample that has ended stays so.
        length : int
            The most tokens to write, at least 1.

        Returns
        -------
        Tensor, shape (..., n), of at most ``length`` tokens, without the start
        """
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        state = self.encode(source, source_domain)
        batch = _there(source).shape[:-1]
        token = torch.full((*batch, 1), start, device=source.device)
        ended = torch.zeros_like(token, dtype=torch.bool)
        written: list[Tensor] = []
        while len(written) < length and not ended.all():
            logits, state = self.step(state, token)
            token = logits.argmax(-1).masked_fill(ended, end)
            ended = token == end
            written.append(token)
        return torch.cat([token[..., :0], *written], -1)


def _there(x: Tensor) -> Tensor:
    """True for each token, or each point of a field: (..., n)."""
    return torch.ones(x.shape[: x.ndim - x.is_floating_point()], dtype=torch.bool, device=x.device)


def _continued(past: list[KeyValues] | None, new: Tensor) -> Domain:
    """The target so far, and new tokens after its last time."""
    if not past:
        return token_domain(new)
    so_far = past[0].source
    times = so_far.points[..., -1:, :] + new.cumsum(-1).unsqueeze(-1)
    weights = torch.cat([so_far.weights, new.double()], -1)
    return Domain(torch.cat([so_far.points, times], -2), weights)


def _read(x: Tensor, domain: Domain, embedding: Embedding, position: PositionalEncoding) -> Tensor:
    """Tokens (..., n, c) at their positions; what padding holds is not looked at."""
    return position.embed(embedding(domain.zero_null(x)), domain)


def _check(name: str, domain: Domain, shape: tuple[int, ...]) -> None:
    got = tuple(domain.weights.shape)
    if got != tuple(shape):
        raise ValueError(f"{name} must have {tuple(shape)} points, one for each token, got {got}")
