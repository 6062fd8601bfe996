"""The classical parts against torch's own modules, with the same weights: outputs and gradients.

A causal mask is an order of time, each token an atom of the measure; a padded key is a source of
measure zero. ``nn.Transformer`` ends both its stacks with a norm, even in Post-LN; 2017 and ours do
not, so it gets stacks without.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tolerances import GRADIENT, ROUNDING, difference
from torch import nn

from opformer import Attention, Domain, Encoder
from opformer.autoregressive import AutoregressiveBlock, AutoregressiveDecoder
from opformer.embedding import Embedding
from opformer.sequence import Transformer
from opformer.transformer import EncoderBlock

TIGHT, LOOSE = ROUNDING[torch.float64], GRADIENT[torch.float64]
C, N, M, HIDDEN = 24, 9, 7, 40
every_batch = pytest.mark.parametrize("batch", [(), (3,)], ids=["", "batch"])
every_mask = pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
every_padding = pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])


def steps(n, *batch, padded=False):
    """Equal weights at the times 0, 1, 2, ...; the ends of samples are padding."""
    weights = torch.ones(*batch, n)
    if padded:
        weights[..., -3:] = 0
        if batch:
            weights[0] = 1  # one sample of full length
    return Domain(torch.arange(float(n))[:, None].expand(*batch, n, 1), weights)


def masks(source, n, causal, padded):
    """Torch's masks: True is what nobody may look at."""
    m = source.size
    return {
        "attn_mask": torch.ones(n, m, dtype=torch.bool).triu(1) if causal else None,
        "key_padding_mask": source.null if padded else None,
    }


def pairs_of_attention(ours, theirs):
    """Parameters of ours, and where the same numbers are in theirs."""
    q, k, v = range(C), range(C, 2 * C), range(2 * C, 3 * C)
    return [
        (ours.query.weight, theirs.in_proj_weight, q),
        (ours.key.weight, theirs.in_proj_weight, k),
        (ours.value.weight, theirs.in_proj_weight, v),
        (ours.query.bias, theirs.in_proj_bias, q),
        (ours.value.bias, theirs.in_proj_bias, v),
        (ours.out.weight, theirs.out_proj.weight, range(C)),
        (ours.out.bias, theirs.out_proj.bias, range(C)),
    ]


def pairs_of(ours, theirs):
    """All parameters of two modules of one structure: norms, linear maps."""
    both = zip(ours.parameters(), theirs.parameters(), strict=True)
    return [(a, b, range(len(b))) for a, b in both]


def pairs_of_block(ours, theirs):
    return [
        *pairs_of_attention(ours.attention, theirs.self_attn),
        *pairs_of(ours.attention_norm, theirs.norm1),
        *pairs_of(ours.feed_forward_norm, theirs.norm2),
        *pairs_of(ours.feed_forward[0], theirs.linear1),
        *pairs_of(ours.feed_forward[2], theirs.linear2),
    ]


def pairs_of_decoder_block(ours, theirs):
    return [
        *pairs_of_attention(ours.self_attention, theirs.self_attn),
        *pairs_of_attention(ours.attention, theirs.multihead_attn),
        *pairs_of(ours.self_attention_norm, theirs.norm1),
        *pairs_of(ours.attention_norm, theirs.norm2),
        *pairs_of(ours.feed_forward_norm, theirs.norm3),
        *pairs_of(ours.feed_forward[0], theirs.linear1),
        *pairs_of(ours.feed_forward[2], theirs.linear2),
    ]


def pairs_of_stack(ours, theirs, block):
    """Of ``block``'s pairs, and those of the last norm where there is one."""
    both = zip(ours.blocks, theirs.layers, strict=True)
    pairs = [pair for a, b in both for pair in block(a, b)]
    return pairs if theirs.norm is None else pairs + pairs_of(ours.norm, theirs.norm)


def same_weights(pairs, ours):
    """Random ones in both; every parameter of ours is paired."""
    assert {id(a) for a, *_ in pairs} == {id(p) for p in ours.parameters()}
    with torch.no_grad():
        for a, b, rows in pairs:
            a.add_(0.1 * torch.randn_like(a))
            b[list(rows)] = a


def same_results(y, z, inputs, pairs):
    assert difference(y, z) < TIGHT
    g = torch.randn_like(y)
    got = torch.autograd.grad(y, inputs + [a for a, *_ in pairs], g)
    want = torch.autograd.grad(z, inputs + [b for _, b, _ in pairs], g)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        rows = i - len(inputs)
        assert difference(a, b if rows < 0 else b[list(pairs[rows][2])]) < LOOSE


@every_batch
@every_mask
@every_padding
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("heads", [1, 4])
def test_multihead_attention(batch, causal, padded, cross, heads):
    ours = Attention(C, heads, qk_norm=False, causal_axis=0 if causal else None, atoms=True)
    theirs = nn.MultiheadAttention(C, heads, batch_first=True)
    pairs = pairs_of_attention(ours, theirs)
    same_weights(pairs, ours)
    with torch.no_grad():
        theirs.in_proj_bias[C : 2 * C] = 0  # that of the keys cancels: ours have none
    x = torch.randn(*batch, N, C, requires_grad=True)
    memory = torch.randn(*batch, M, C, requires_grad=True) if cross else x
    target, source = steps(N, *batch), steps(M if cross else N, *batch, padded=padded)
    y = ours(x, target, memory, source)
    z, _ = theirs(x, memory, memory, need_weights=False, **masks(source, N, causal, padded))
    same_results(y, z, [x, memory] if cross else [x], pairs)


def test_a_bias_of_the_keys_cancels():
    theirs = nn.MultiheadAttention(C, 4, batch_first=True)
    x = torch.randn(3, N, C)
    before = theirs(x, x, x)[0]
    with torch.no_grad():
        theirs.in_proj_bias[C : 2 * C] = torch.randn(C)
    assert difference(theirs(x, x, x)[0], before) < TIGHT


def torch_layer(heads, activation, norm_first, kind=nn.TransformerEncoderLayer):
    return kind(
        C,
        heads,
        HIDDEN,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm_first,
    )


every_order = pytest.mark.parametrize("norm_first", [True, False], ids=["pre-LN", "post-LN"])
every_activation = pytest.mark.parametrize("activation", ["relu", "gelu"])


@every_batch
@every_mask
@every_padding
@every_order
@every_activation
def test_encoder_layer(batch, causal, padded, norm_first, activation):
    theirs = torch_layer(4, activation, norm_first)
    ours = EncoderBlock(
        C,
        4,
        hidden=HIDDEN,
        norm_first=norm_first,
        qk_norm=False,
        causal_axis=0 if causal else None,
        atoms=True,
        activation=activation,
    )
    pairs = pairs_of_block(ours, theirs)
    same_weights(pairs, ours)
    x, at = torch.randn(*batch, N, C, requires_grad=True), steps(N, *batch, padded=padded)
    given = masks(at, N, causal, padded)
    z = theirs(x, given["attn_mask"], given["key_padding_mask"])
    same_results(ours(x, at), z, [x], pairs)


@every_order
@every_mask
def test_encoder(norm_first, causal):
    """The stack, with the last norm of Pre-LN."""
    layer = partial(torch_layer, 4, "relu", norm_first)
    norm = nn.LayerNorm(C) if norm_first else None
    theirs = nn.TransformerEncoder(layer(), 3, norm, enable_nested_tensor=False)
    ours = Encoder(
        3,
        C,
        4,
        hidden=HIDDEN,
        norm_first=norm_first,
        qk_norm=False,
        causal_axis=0 if causal else None,
        atoms=True,
        activation="relu",
    )
    pairs = pairs_of_stack(ours, theirs, pairs_of_block)
    same_weights(pairs, ours)
    x, at = torch.randn(3, N, C, requires_grad=True), steps(N, 3, padded=True)
    given = masks(at, N, causal, True)
    z = theirs(x, given["attn_mask"], given["key_padding_mask"])
    same_results(ours(x, at), z, [x], pairs)


torch_decoder_layer = partial(torch_layer, kind=nn.TransformerDecoderLayer)


def decoder_masks(target, source, padded):
    """Torch's masks for a decoder: True is what nobody may look at."""
    return {
        "tgt_mask": torch.ones(target.size, target.size, dtype=torch.bool).triu(1),
        "tgt_key_padding_mask": target.null if padded else None,
        "memory_key_padding_mask": source.null if padded else None,
    }


@every_batch
@every_padding
@every_order
@every_activation
def test_decoder_layer(batch, padded, norm_first, activation):
    theirs = torch_decoder_layer(4, activation, norm_first)
    ours = AutoregressiveBlock(
        C, 4, hidden=HIDDEN, norm_first=norm_first, qk_norm=False, atoms=True, activation=activation
    )
    pairs = pairs_of_decoder_block(ours, theirs)
    same_weights(pairs, ours)
    x = torch.randn(*batch, N, C, requires_grad=True)
    memory = torch.randn(*batch, M, C, requires_grad=True)
    target, source = steps(N, *batch, padded=padded), steps(M, *batch, padded=padded)
    z = theirs(x, memory, **decoder_masks(target, source, padded))
    same_results(ours(x, target, memory, source), z, [x, memory], pairs)


@every_order
def test_decoder(norm_first):
    """The stack, with the last norm of Pre-LN."""
    norm = nn.LayerNorm(C) if norm_first else None
    theirs = nn.TransformerDecoder(torch_decoder_layer(4, "relu", norm_first), 3, norm)
    ours = AutoregressiveDecoder(
        3, C, 4, hidden=HIDDEN, norm_first=norm_first, qk_norm=False, atoms=True, activation="relu"
    )
    pairs = pairs_of_stack(ours, theirs, pairs_of_decoder_block)
    same_weights(pairs, ours)
    x = torch.randn(3, N, C, requires_grad=True)
    memory = torch.randn(3, M, C, requires_grad=True)
    target, source = steps(N, 3, padded=True), steps(M, 3, padded=True)
    z = theirs(x, memory, **decoder_masks(target, source, padded=True))
    same_results(ours(x, target, memory, source), z, [x, memory], pairs)


@pytest.mark.parametrize("shape", [(N,), (3, N)], ids=["", "batch"])
def test_embedding(shape):
    ours, theirs = Embedding(11, C), nn.Embedding(11, C)
    pairs = pairs_of(ours, theirs)
    same_weights(pairs, ours)
    tokens = torch.randint(11, shape)
    same_results(ours(tokens), C**0.5 * theirs(tokens), [], pairs)


@every_padding
@every_order
def test_transformer(padded, norm_first):
    """The whole model of 2017, from tokens to logits, between two vocabularies."""
    words, other = 11, 13
    norms = [nn.LayerNorm(C) if norm_first else None for _ in range(2)]
    encoder = nn.TransformerEncoder(
        torch_layer(4, "relu", norm_first), 2, norms[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(torch_decoder_layer(4, "relu", norm_first), 2, norms[1])
    theirs = nn.Transformer(C, 4, batch_first=True, custom_encoder=encoder, custom_decoder=decoder)
    tables, last = (nn.Embedding(words, C), nn.Embedding(other, C)), nn.Linear(C, other)
    ours = Transformer(
        words, other, channels=C, heads=4, layers=2, hidden=HIDDEN, norm_first=norm_first
    )
    pairs = [
        *pairs_of(ours.source_embedding, tables[0]),
        *pairs_of(ours.target_embedding, tables[1]),
        *pairs_of_stack(ours.encoder, encoder, pairs_of_block),
        *pairs_of_stack(ours.decoder, decoder, pairs_of_decoder_block),
        *pairs_of(ours.project, last),
    ]
    same_weights(pairs, ours)
    source, target = torch.randint(words, (3, M)), torch.randint(other, (3, N))
    over, at = steps(M, 3, padded=padded), steps(N, 3, padded=padded)
    both = zip(tables, (source, target), strict=True)
    tokens = [C**0.5 * table(x) + sinusoids(x.shape[1]) for table, x in both]
    given = decoder_masks(at, over, padded)
    z = last(theirs(*tokens, src_key_padding_mask=over.null if padded else None, **given))
    there = ~at.null  # what padding holds is not looked at
    same_results(ours(source, target, over, at)[there], z[there], [], pairs)


def sinusoids(n):
    """Sine and cosine in turn, as written in 2017."""
    angles = [[t / 10000 ** (2 * (i // 2) / C) for i in range(C)] for t in range(n)]
    sines = torch.tensor(angles).sin()
    sines[:, 1::2] = torch.tensor(angles).cos()[:, 1::2]
    return sines
