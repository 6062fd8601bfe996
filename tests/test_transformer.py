"""Blocks: residuals and norms in their order, and the same function at any target."""

from __future__ import annotations

import math

import pytest
import torch
from tolerances import ROUNDING, difference
from torch import nn

from opformer import Decoder, Domain, Encoder, stack
from opformer.encodings import Compose, Coordinates, GaussianBias, Rotary
from opformer.transformer import DecoderBlock, EncoderBlock, FeedForward

TIGHT = ROUNDING[torch.float64]
C, HEADS, N, M = 24, 2, 5, 9
every_order = pytest.mark.parametrize("norm_first", [True, False], ids=["pre-LN", "post-LN"])


def domain(n, *batch):
    return Domain(2 * torch.rand(*batch, n, 2) - 1, torch.rand(*batch, n) + 0.1)


def encoding():
    return Compose(Coordinates(2, C), Rotary(2, HEADS, C // HEADS), GaussianBias(2, HEADS, C))


def layer_norm(x, norm):
    """(x - mean) / sqrt(var + eps), by its formula."""
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def shake(module):
    """Norms start as one and zero: move them, so that a wrong one shows."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return module


def test_feed_forward():
    """W₂ GELU(W₁ x + b₁) + b₂, GELU(z) = z Φ(z), at every point by itself."""
    feed, x = FeedForward(C, 10), torch.randn(3, N, C)
    first, _, second = feed
    z = x @ first.weight.T + first.bias
    gelu = z * (1 + torch.erf(z / math.sqrt(2))) / 2
    assert difference(feed(x), gelu @ second.weight.T + second.bias) < TIGHT
    assert FeedForward(C)[0].weight.shape == (2 * C, C)
    assert difference(feed(x)[1, 2], feed(x[1, 2])) < TIGHT


def test_feed_forward_of_2017():
    """W₂ max(0, W₁ x + b₁) + b₂."""
    feed, x = FeedForward(C, 10, "relu"), torch.randn(3, N, C)
    first, _, second = feed
    z = x @ first.weight.T + first.bias
    expected = torch.where(z > 0, z, 0) @ second.weight.T + second.bias
    assert difference(feed(x), expected) < TIGHT


def test_swiglu():
    """W₂ (silu(W₁ x + b₁) ⊙ (W₃ x + b₃)) + b₂, silu(z) = z / (1 + e^-z)."""
    feed, x = FeedForward(C, 10, "swiglu"), torch.randn(3, N, C)
    first, _, second = feed
    w1, w3, b1, b3 = *first.weight.split(10), *first.bias.split(10)
    z = x @ w1.T + b1
    inner = z / (1 + torch.exp(-z)) * (x @ w3.T + b3)
    assert difference(feed(x), inner @ second.weight.T + second.bias) < TIGHT


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match=r"one of \['gelu', 'relu', 'swiglu'\], got 'tanh'"):
        FeedForward(C, activation="tanh")


@every_order
@pytest.mark.parametrize("kind", [EncoderBlock, DecoderBlock])
def test_a_block_in_formulas(norm_first, kind):
    block = shake(kind(C, HEADS, encoding=Rotary(2, HEADS, 12), norm_first=norm_first))
    target, source = domain(N), domain(M)
    x, memory = torch.randn(N, C), torch.randn(M, C)
    one, two, attend, feed = (
        block.attention_norm,
        block.feed_forward_norm,
        block.attention,
        block.feed_forward,
    )
    if norm_first:
        # A decoder's memory comes normalised from the encoder.
        heard = memory if kind is DecoderBlock else layer_norm(memory, one)
        z = x + attend(layer_norm(x, one), target, heard, source)
        expected = z + feed(layer_norm(z, two))
    else:
        z = layer_norm(x + attend(x, target, memory, source), one)
        expected = layer_norm(z + feed(z), two)
    assert difference(block(x, target, memory, source), expected) < TIGHT


@every_order
def test_a_block_on_its_own_domain(norm_first):
    block, at, x = (
        shake(EncoderBlock(C, HEADS, norm_first=norm_first)),
        domain(M),
        torch.randn(M, C),
    )
    assert difference(block(x, at), block(x, at, x, at)) < TIGHT


@every_order
def test_an_encoder_is_its_blocks(norm_first):
    encoder, at = shake(Encoder(3, C, HEADS, norm_first=norm_first)), domain(M)
    x = states = torch.randn(M, C)
    for block in encoder.blocks:
        states = block(states, at)
    if norm_first:
        states = layer_norm(states, encoder.norm)
    else:
        assert isinstance(encoder.norm, nn.Identity)
    assert difference(encoder(x, at), states) < TIGHT


@every_order
@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_targets_on_the_source_get_what_the_source_got(norm_first, layers, batch):
    """A target listens like a source, so `at` the source's points is the encoder itself."""
    encoder = shake(Encoder(layers, C, HEADS, encoding=encoding(), norm_first=norm_first))
    at, x = domain(M, *batch), torch.randn(*batch, M, C)
    y, key_values = encoder.run(x, at)
    assert len(key_values) == layers
    rows = torch.tensor([4, 0, 7])
    got = encoder.at(x[..., rows, :], at.take(rows), key_values)
    assert difference(got, y[..., rows, :]) < TIGHT


@every_order
@pytest.mark.parametrize("layers", [1, 3])
def test_a_decoder_reads_one_memory(norm_first, layers):
    decoder = shake(Decoder(layers, C, HEADS, encoding=encoding(), norm_first=norm_first))
    target, source, x, memory = domain(N), domain(M), torch.randn(N, C), torch.randn(M, C)
    expected = x
    for block in decoder.blocks:
        assert isinstance(block, DecoderBlock)
        expected = block(expected, target, memory, source)
    got = decoder(x, target, memory, source)
    assert difference(got, decoder.norm(expected)) < TIGHT
    assert difference(decoder(x[:2], target.take(slice(2)), memory, source), got[:2]) < TIGHT


def test_each_block_has_an_encoding_of_its_own():
    given = encoding()
    encoder = Encoder(2, C, HEADS, encoding=given)
    first, second = (block.attention.encoding for block in encoder.blocks)
    assert {type(e) for e in first.encodings} == {Rotary, GaussianBias}  # and no embedding
    for p, q, original in zip(
        first.parameters(),
        second.parameters(),
        given.only("rotate", "factors").parameters(),
        strict=True,
    ):
        assert torch.equal(p, q)
        assert len({p.data_ptr(), q.data_ptr(), original.data_ptr()}) == 3


@every_order
def test_a_padded_batch_is_a_loop(norm_first):
    encoder = shake(Encoder(3, C, HEADS, encoding=encoding(), norm_first=norm_first))
    domains = [domain(M), domain(N)]
    x = torch.randn(2, M, C)
    y = encoder(x, stack(domains))
    for i, at in enumerate(domains):
        assert difference(y[i, : at.size], encoder(x[i, : at.size], at)) < TIGHT


@every_order
def test_null_points_do_not_speak(norm_first):
    encoder = shake(Encoder(3, C, HEADS, encoding=encoding(), norm_first=norm_first))
    at, x = domain(M), torch.randn(M, C)
    dead = Domain(at.points, at.weights.clone().index_fill_(0, torch.tensor([2, 5]), 0))
    alive = ~dead.null
    expected = encoder(x[alive], at.take(alive))
    for value in (0.0, 1e3, math.nan, math.inf):
        filled = torch.where(alive[:, None], x, value)
        assert difference(encoder(filled, dead)[alive], expected) < TIGHT


def test_options_reach_the_blocks():
    encoder = Encoder(2, C, HEADS, hidden=7, qk_norm=False, activation="relu")
    for block in encoder.blocks:
        assert block.feed_forward[0].out_features == 7
        assert isinstance(block.feed_forward[1], nn.ReLU)
        assert isinstance(block.attention.query_norm, nn.Identity)
    with pytest.raises(TypeError, match="depth"):
        Encoder(2, C, HEADS, depth=3)
