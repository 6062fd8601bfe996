r"""Blocks that write a function on one domain from another: the decoder of 2017.

.. math:: x \leftarrow x + \int_{s\le t}\alpha(t,s)\,v(s)\,d\nu(s), \qquad
   x \leftarrow x + \int_\Omega \beta(t,s)\,w(s)\,d\mu(s), \qquad x \leftarrow x + \mathrm{FFN}(x):

an integral over the target's own past, one over the encoded source, and the feed-forward, each with
a layer norm: Pre-LN, or Post-LN as in 2017. Reference: Vaswani et al., arXiv:1706.03762.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from opformer.attention import Attention, KeyValues
from opformer.domain import Domain
from opformer.encodings import PositionalEncoding
from opformer.transformer import Decoder, DecoderBlock

__all__ = ["AutoregressiveBlock", "AutoregressiveDecoder"]


class AutoregressiveBlock(DecoderBlock):
    """Masked self-attention, then cross-attention and feed-forward as in :class:`DecoderBlock`.

    Parameters
    ----------
    channels, heads : int
    encoding : PositionalEncoding, optional
        Of both attentions, a copy for each.
    qk_norm : bool
    causal_axis : int
    atoms : bool
        Of the self-attention, see :class:`opformer.Attention`.
    **options
        ``hidden``, ``norm_first`` and ``activation`` of :class:`opformer.transformer.EncoderBlock`.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        encoding: PositionalEncoding | None = None,
        qk_norm: bool = True,
        causal_axis: int = 0,
        atoms: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(channels, heads, encoding=encoding, qk_norm=qk_norm, **options)
        self.self_attention = Attention(
            channels,
            heads,
            encoding=deepcopy(encoding),
            qk_norm=qk_norm,
            causal_axis=causal_axis,
            atoms=atoms,
        )
        self.self_attention_norm = nn.LayerNorm(channels)

    def forward(  # type: ignore[override]  # not without a memory: its own x would look ahead
        self,
        x: Tensor,
        target: Domain,
        memory: Tensor | KeyValues,
        source: Domain | None = None,
    ) -> Tensor:
        """Tokens (..., n, c) of the target after the block, from the encoded source.

        ``memory`` are its tokens, with their domain, or what :meth:`key_values` has made of these.
        """
        return self.run(x, target, memory, source)[0]

    def run(
        self,
        x: Tensor,
        domain: Domain,
        memory: Tensor | KeyValues,
        source: Domain | None = None,
        *,
        past: KeyValues | None = None,
    ) -> tuple[Tensor, KeyValues]:
        """The same, and what has been heard of the target: ``past`` of a call with later points.

        ``domain`` then holds all points so far, of which those of x are the last.
        """
        target = domain.take(slice(domain.size - x.shape[-2], None))
        y = self.self_attention_norm(x) if self.norm_first else x
        heard = self.self_attention.key_values(y, target)
        if past is not None:
            heard = past.append(heard, domain)
        x = x + self.self_attention(y, target, heard)
        x = x if self.norm_first else self.self_attention_norm(x)
        return super().forward(x, target, memory, source), heard


class AutoregressiveDecoder(Decoder):
    """A stack of :class:`AutoregressiveBlock`, and a last layer norm if Pre-LN.

    ``AutoregressiveDecoder(layers, channels, heads, *, encoding=None, norm_first=True, hidden=None,
    qk_norm=True, causal_axis=0, atoms=False, activation="gelu")``, called as
    ``decoder(x, target, memory, source)``.
    """

    block: type[AutoregressiveBlock] = AutoregressiveBlock
    blocks: Sequence[AutoregressiveBlock]

    def run(
        self,
        x: Tensor,
        domain: Domain,
        memory: Sequence[KeyValues],
        past: Sequence[KeyValues] | None = None,
    ) -> tuple[Tensor, list[KeyValues]]:
        """The tokens (..., n, c) after all blocks, and what each block has heard of the target.

        Parameters
        ----------
        x : Tensor, shape (..., n, c)
        domain : Domain
            Of all points of the target so far; the n are the last of them.
        memory : list of KeyValues
            What each block reads of the encoded source, as :meth:`key_values` makes it.
        past : list of KeyValues, optional
            Of the points before the n, from an earlier call.
        """
        heard = []
        before: Sequence[KeyValues | None] = past or [None] * len(self.blocks)
        for block, read, own in zip(self.blocks, memory, before, strict=True):
            x, key_values = block.run(x, domain, read, past=own)
            heard.append(key_values)
        return self.norm(x), heard
