r"""Scaled dot-product attention step by step: similarity, softmax, weighted mean.

.. math::

    p(t,s) = \frac{q_t\cdot k_s}{\sqrt{d_k}}, \qquad
    a(t,s) = \operatorname{softmax}_s\bigl(p(t,s)+\log w_s\bigr), \qquad
    y_t = \sum_s a(t,s)\,v_s.

To be read, and to be looked at: each step is an array (..., n, m). The three in a row are
:func:`opformer.kernel_integral`, which holds no such array. A mask M of 0 and -inf, or any other
bias of the log-kernel, is added to p. Reference: Vaswani et al., arXiv:1706.03762, section 3.2.1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from opformer.domain import Domain
from opformer.integral import check_weights, log_density

__all__ = ["SelfAttention", "attention_weights", "similarity", "weighted_mean"]


def similarity(q: Tensor, k: Tensor) -> Tensor:
    r"""The scores :math:`q\,k^\top/\sqrt{d_k}` of targets (rows) and sources (columns).

    If the channels of q and k are independent, of mean 0 and variance 1, a score has mean 0 and
    variance 1 too, for any number of channels: the softmax does not saturate.

    Parameters
    ----------
    q : Tensor, shape (..., n, d_k)
    k : Tensor, shape (..., m, d_k)

    Returns
    -------
    Tensor, shape (..., n, m)
    """
    return q @ k.mT / math.sqrt(q.shape[-1])


def attention_weights(p: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""What part each source has in the result: the softmax over the sources of p + log w.

    Parameters
    ----------
    p : Tensor, shape (..., n, m)
        Scores, with what is added to them: a mask of 0 and -inf, a bias of position.
    weights : Tensor, shape (..., m), optional
        Quadrature weights of the sources, as those of a :class:`opformer.Domain`; None for equal
        ones. No gradient flows to them.

    Returns
    -------
    Tensor, shape (..., n, m)
        Each row sums to one, or is zero if all its sources are masked or have weight zero. Divided
        by the weights it is the kernel :math:`\alpha(t,s)`, a density under the measure.

    Raises
    ------
    ValueError
        If the weights do not fit, are negative or not finite.

    Examples
    --------
    >>> p = torch.zeros(1, 3)
    >>> attention_weights(p, torch.tensor([0.25, 0.5, 0.25]))
    tensor([[0.2500, 0.5000, 0.2500]])
    >>> attention_weights(p + torch.tensor([0, 0, -torch.inf]))
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    if weights is not None:
        check_weights(weights, (*p.shape[:-2], p.shape[-1]))
        p = p + log_density(weights)[0].unsqueeze(-2).to(p.dtype)
    # The softmax of a row of -inf alone is NaN, and so is its gradient.
    dead = (p == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(p.masked_fill(dead, 0), -1).masked_fill(dead, 0)


def weighted_mean(a: Tensor, v: Tensor) -> Tensor:
    r"""The values of all sources, each by its part: :math:`y_t=\sum_s a(t,s)\,v_s`.

    Parameters
    ----------
    a : Tensor, shape (..., n, m)
    v : Tensor, shape (..., m, c)

    Returns
    -------
    Tensor, shape (..., n, c)
    """
    return a @ v


class SelfAttention(nn.Module):
    r"""A single head: every token asks every token. Three linear maps, and nothing else.

    .. math:: Q = xW^Q, \quad K = xW^K, \quad V = xW^V, \qquad
       y = \operatorname{softmax}\Bigl(\frac{QK^\top}{\sqrt{d_k}} + M + \log w\Bigr)\,V

    :class:`opformer.Attention` has several heads, biases, a map of the output and encodings of
    position.

    Parameters
    ----------
    channels : int
        Width of the tokens, and of queries, keys and values.

    Examples
    --------
    >>> attention = SelfAttention(8)
    >>> attention(torch.randn(4, 8)).shape
    torch.Size([4, 8])

    Masked, with a batch of three: no token hears one that comes later, whatever their order.

    >>> time = torch.tensor([0.0, 2.5, 0.5, 3.0])
    >>> mask = torch.zeros(4, 4).masked_fill(time > time[:, None], -torch.inf)
    >>> attention(torch.randn(3, 4, 8), mask=mask).shape
    torch.Size([3, 4, 8])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.query = nn.Linear(channels, channels, bias=False)
        self.key = nn.Linear(channels, channels, bias=False)
        self.value = nn.Linear(channels, channels, bias=False)

    def forward(
        self, x: Tensor, domain: Domain | None = None, *, mask: Tensor | None = None
    ) -> Tensor:
        """Tokens (..., n, channels) to the weighted means of their values, of the same shape.

        Parameters
        ----------
        x : Tensor, shape (..., n, channels)
        domain : Domain of n points, optional
            The measure of the tokens; without it they count alike. One of measure zero hears the
            others and is not heard, whatever it holds.
        mask : Tensor, shape (..., n, n), optional
            M, which is added to the scores: 0 where a target (row) hears a source, -inf where not.
        """
        heard = x if domain is None else domain.zero_null(x)
        p = similarity(self.query(x), self.key(heard))
        if mask is not None:
            p = p + mask
        a = attention_weights(p, None if domain is None else domain.weights)
        return weighted_mean(a, self.value(heard))
