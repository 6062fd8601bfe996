r"""Sentences as functions: where their tokens lie, and what the words are there.

.. math:: \mu = \sum_t \delta(t), \qquad x(t) = \sqrt{c}\,E_{\mathrm{token}(t)} .

Reference: Vaswani et al., arXiv:1706.03762, section 3.4.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opformer.domain import Domain

__all__ = ["Embedding", "token_domain"]


class Embedding(nn.Module):
    r"""The input embedding with the scale of 2017, for tokens and for fields.

    .. math:: x(t) = \sqrt{c}\,E_{\mathrm{token}(t)}
        \qquad\text{or}\qquad x(t) = \sqrt{c}\,\sum_i f_i(t)\,E_i .

    The two are one map: a token is the field that indicates its word, 1 in that channel and 0 in
    all others. What looks words up in a table is the lift of a field, a linear map at each point.

    Parameters
    ----------
    in_channels : int
        Words of the vocabulary, or channels of the field: the rows of E.
    channels : int
        Width c of what comes out. E is drawn from N(0, 1/c), so that words come out with variance 1
        in each channel, like sinusoids added to them.

    Examples
    --------
    >>> embedding = Embedding(5, 8)
    >>> tokens = torch.tensor([3, 1, 4])
    >>> embedding(tokens).shape
    torch.Size([3, 8])
    >>> torch.allclose(embedding(tokens), embedding(F.one_hot(tokens, 5).double()))
    True
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.in_channels, self.channels = in_channels, channels
        self.weight = nn.Parameter(torch.randn(in_channels, channels) / math.sqrt(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Integer tokens (..., n) or floating fields (..., n, in_channels) to (..., n, channels).

        Raises
        ------
        ValueError
            On a token that is no row of E, or another number of channels.
        """
        scale = math.sqrt(self.channels)
        if not x.is_floating_point():
            self._refuse_unknown(x)
            return scale * F.embedding(x.long(), self.weight)
        if x.shape[-1] != self.in_channels:
            raise ValueError(
                f"fields must be (..., n, {self.in_channels}), got {tuple(x.shape)}; tokens are "
                "integers"
            )
        return scale * (x.to(self.weight.dtype) @ self.weight)

    def _refuse_unknown(self, tokens: Tensor) -> None:
        bad = (tokens < 0) | (tokens >= self.in_channels)
        if bad.any():
            index = tuple(torch.nonzero(bad)[0].tolist())
            raise ValueError(
                f"tokens must be from 0 to {self.in_channels - 1}: entry {index} is "
                f"{tokens[index].item()} ({int(bad.sum())} such entries)"
            )


def token_domain(present: Tensor) -> Domain:
    """Tokens as atoms of weight 1 at the times 0, 1, 2, …; padding has measure zero.

    Parameters
    ----------
    present : Tensor of bool, shape (..., n)
        False for padding, wherever it stands: time counts the tokens that are there.

    Examples
    --------
    >>> tokens = torch.tensor([[5, 2, 7], [0, 4, 0]])
    >>> domain = token_domain(tokens != 0)
    >>> domain.points[..., 0], domain.weights
    (tensor([[0., 1., 2.],
            [0., 0., 0.]], dtype=torch.float64), tensor([[1., 1., 1.],
            [0., 1., 0.]], dtype=torch.float64))
    """
    times = (present.long().cumsum(-1) - 1).clamp(min=0)
    return Domain(times.unsqueeze(-1), present)
