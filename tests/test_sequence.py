"""The encoder-decoder of 2017 on domains: the written formula, causality, caches, the contracts."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from test_attention import DistanceBias
from tolerances import GRADIENT, ROUNDING, difference
from torch import nn

from opformer import Domain, stack
from opformer.autoregressive import AutoregressiveBlock, AutoregressiveDecoder
from opformer.checkpoint import load_checkpoint, save_checkpoint
from opformer.config import build, describe
from opformer.embedding import Embedding, token_domain
from opformer.encodings import Compose, FourierFeatures, GaussianBias, Rotary, Sinusoidal
from opformer.sequence import Transformer

TIGHT = ROUNDING[torch.float64]
WORDS, OTHER = 7, 9
C, H = 16, 2
M, N = 6, 8


def transformer(source=WORDS, target=OTHER, out=None, **options):
    options = {"channels": C, "heads": H, "layers": 2, "hidden": 24, **options}
    return Transformer(source, target, out, **options)


def encodings():
    return {
        "2017": None,
        "none": Compose(),
        "fourier": FourierFeatures(1, C, frequencies=4, length=2.0),
        "all": Compose(
            Sinusoidal(1, C), Rotary(1, H, C // H), GaussianBias(1, H, C), DistanceBias(H)
        ),
    }


every_encoding = pytest.mark.parametrize("encoding", encodings())
every_order = pytest.mark.parametrize("norm_first", [False, True], ids=["post-LN", "pre-LN"])


def tokens(*batch, words=WORDS, n=M):
    return torch.randint(words, (*batch, n))


def times(n, *batch):
    """Atoms at unequal times, with unequal weights."""
    steps = 0.2 + torch.rand(*batch, n)
    return Domain(steps.cumsum(-1)[..., None], 0.1 + torch.rand(*batch, n))


# Embedding


def test_a_token_is_the_field_that_indicates_it():
    embedding, words = Embedding(WORDS, C), tokens(3)
    fields = nn.functional.one_hot(words, WORDS).double()
    y, z = embedding(words), embedding(fields)
    assert difference(y, z) < TIGHT
    g = torch.randn_like(y)
    (got,), (want,) = (torch.autograd.grad(x, [embedding.weight], g) for x in (y, z))
    assert difference(got, want) < GRADIENT[torch.float64]


def test_the_scale():
    embedding = Embedding(4000, C)
    x = embedding(torch.arange(4000))
    assert torch.equal(x, math.sqrt(C) * embedding.weight)
    assert abs(float(x.detach().var()) - 1) < 0.03


@pytest.mark.parametrize(("token", "entry"), [(-1, r"\(1, 2\) is -1"), (WORDS, r"\(1, 2\) is 7")])
def test_an_unknown_token_is_named(token, entry):
    words = tokens(3)
    words[1, 2] = token
    with pytest.raises(ValueError, match=f"from 0 to 6: entry {entry}"):
        Embedding(WORDS, C)(words)


def test_fields_of_other_channels_are_refused():
    with pytest.raises(ValueError, match=r"fields must be \(..., n, 7\), got \(5, 6\)"):
        Embedding(WORDS, C)(torch.randn(5, 6))


# Where tokens lie


def test_time_counts_the_tokens_that_are_there():
    domain = token_domain(torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]]).bool())
    assert domain.weights.tolist() == [[1, 1, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]]
    assert domain.points[0, :3, 0].tolist() == [0, 1, 2]
    assert domain.points[1, [1, 3], 0].tolist() == [0, 1]


# The formula


def oracle(model, source, target, over, at):
    """The model of 2017 as it is written, token by token, with weights."""
    p = {name: value.detach().numpy() for name, value in model.named_parameters()}

    def linear(name, x):
        return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)

    def norm(name, x):
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    def attend(name, x, memory, w):
        heads = []
        for i in np.split(np.arange(C), H):
            q = linear(f"{name}.query", x)[i]
            k = [linear(f"{name}.key", m)[i] for m in memory]
            v = [linear(f"{name}.value", m)[i] for m in memory]
            a = [ws * np.exp(q @ ks / np.sqrt(len(i))) for ws, ks in zip(w, k, strict=True)]
            heads.append(sum(x * y for x, y in zip(a, v, strict=True)) / sum(a))
        return linear(f"{name}.out", np.concatenate(heads))

    def feed(name, x):
        return linear(f"{name}.2", np.maximum(linear(f"{name}.0", x), 0))

    def embed(name, words, t):
        rows = [np.sqrt(C) * p[f"{name}.weight"][word] for word in words]
        for x, ti in zip(rows, t, strict=True):
            for j in range(C // 2):
                x[2 * j] += np.sin(ti / 10000 ** (2 * j / C))
                x[2 * j + 1] += np.cos(ti / 10000 ** (2 * j / C))
        return rows

    (s, w), (t, u) = ((x.points[:, 0].numpy(), x.weights.numpy()) for x in (over, at))
    memory = embed("source_embedding", source, s)
    for i in range(model.layers):
        b = f"encoder.blocks.{i}"
        heard = memory
        memory = []
        for x in heard:
            x = norm(f"{b}.attention_norm", x + attend(f"{b}.attention", x, heard, w))
            memory.append(norm(f"{b}.feed_forward_norm", x + feed(f"{b}.feed_forward", x)))
    tokens = embed("target_embedding", target, t)
    for i in range(model.layers):
        b = f"decoder.blocks.{i}"
        heard = tokens
        tokens = []
        for n, x in enumerate(heard):
            past = [j for j in range(len(t)) if t[j] <= t[n]]
            own = [heard[j] for j in past]
            y = attend(f"{b}.self_attention", x, own, u[past])
            x = norm(f"{b}.self_attention_norm", x + y)
            x = norm(f"{b}.attention_norm", x + attend(f"{b}.attention", x, memory, w))
            tokens.append(norm(f"{b}.feed_forward_norm", x + feed(f"{b}.feed_forward", x)))
    return torch.from_numpy(np.stack([linear("project", x) for x in tokens]))


def shaken(model, amount=0.1):
    """No parameter at 0 or 1, where a slip would not be seen."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(amount * torch.randn_like(p))
    return model


@pytest.mark.parametrize("plain", [True, False], ids=["tokens", "weights"])
def test_the_written_formula(plain):
    model = shaken(transformer())
    source, target = tokens(), tokens(words=OTHER, n=N)
    there = token_domain(torch.ones(M).bool()), token_domain(torch.ones(N).bool())
    over, at = there if plain else (times(M), times(N))
    given = () if plain else (over, at)
    assert (
        difference(model(source, target, *given), oracle(model, source, target, over, at)) < TIGHT
    )


def test_the_defaults_are_those_of_2017():
    """The base model: as many parameters as torch's, less last norms and what cancels."""
    with torch.device("meta"):
        ours, theirs = Transformer(WORDS, OTHER), nn.Transformer(batch_first=True)
    norms, key_biases = 2 * 2 * 512, (6 + 2 * 6) * 512
    got = sum(p.numel() for part in (ours.encoder, ours.decoder) for p in part.parameters())
    assert got == sum(p.numel() for p in theirs.parameters()) - norms - key_biases
    assert ours.decoder.blocks[0].attention.heads == theirs.nhead


@every_encoding
@every_order
def test_every_parameter_is_alive(encoding, norm_first):
    model = shaken(transformer(encoding=encodings()[encoding], norm_first=norm_first, qk_norm=True))
    y = model(tokens(20), tokens(20, words=OTHER, n=N))
    y.square().sum().backward()
    learned = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for name, p in learned:
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name


# Causality, and step by step


@every_encoding
@every_order
def test_the_future_is_not_heard_bit_for_bit(encoding, norm_first):
    model = transformer(encoding=encodings()[encoding], norm_first=norm_first)
    source, target = tokens(3), tokens(3, words=OTHER, n=N)
    other = target.clone()
    other[:, 5:] = (other[:, 5:] + 1) % OTHER
    y, z = model(source, target), model(source, other)
    assert torch.equal(y[:, :5], z[:, :5])
    assert (y[:, 5:] != z[:, 5:]).any(-1).all()


def in_steps(model, source, target, sizes, over=None, at=None):
    """As the call, a few tokens at a time; ``at`` gives the domain of the first n."""
    state, parts, n = model.encode(source, over), [], 0
    for size in sizes:
        new = target[:, n : n + size]
        n += size
        y, state = model.step(state, new, None if at is None else at(n))
        parts.append(y)
    return torch.cat(parts, 1)


every_split = pytest.mark.parametrize("sizes", [[1] * N, [3, 1, 4]], ids=["one", "several"])


@every_encoding
@every_order
@every_split
def test_step_by_step(encoding, norm_first, sizes):
    model = transformer(encoding=encodings()[encoding], norm_first=norm_first)
    source, target = tokens(3), tokens(3, words=OTHER, n=N)
    y = model(source, target)
    assert difference(in_steps(model, source, target, sizes), y) < TIGHT


@pytest.mark.parametrize("atoms", [True, False], ids=["atoms", "nodes"])
@every_split
def test_fields_step_by_step_on_unequal_times(atoms, sizes):
    """Autoregression of a field. The weights of a time grid change with what comes later."""
    model = transformer(2, 3, 1, atoms=atoms)
    source, target, over = torch.randn(1, M, 2), torch.randn(1, N, 3), times(M, 1)
    events = times(N)

    def at(n):
        domain = events.take(slice(n))
        if n > 1 and not atoms:
            domain = Domain.from_points(domain.points, rule="interval")
        return stack([domain])

    y = model(source, target, over, at(N))
    assert y.shape == (1, N, 1)
    assert difference(in_steps(model, source, target, sizes, over, at), y) < TIGHT


def test_steps_go_on_from_a_padded_start():
    """Rows of different length, which all go on where they have ended."""
    model, source = transformer(), tokens(2)
    rows = [tokens(words=OTHER, n=5), tokens(words=OTHER, n=3)]
    more = tokens(2, words=OTHER, n=2)
    start = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    state = model.encode(source)
    _, state = model.step(state, start, token_domain(start >= 0))
    for i in range(2):
        y, state = model.step(state, more[:, i : i + 1])
        for j, row in enumerate(rows):
            alone = model(source[j], torch.cat([row, more[j, : i + 1]]))
            assert difference(y[j, 0], alone[-1]) < TIGHT


def test_nothing_is_read_again():
    model = transformer()
    seen = {"source": 0, "keys": 0, "tokens": 0}

    def count(name):
        def hook(module, inputs):
            seen[name] += inputs[0].shape[-2]

        return hook

    model.encoder.blocks[0].register_forward_pre_hook(count("source"))
    model.decoder.blocks[0].attention.value.register_forward_pre_hook(count("keys"))
    model.decoder.blocks[0].feed_forward.register_forward_pre_hook(count("tokens"))
    model.generate(tokens(3), start=0, end=OTHER, length=5)
    assert seen == {"source": M, "keys": M, "tokens": 5}


# Writing

START, END, LONGEST = 7, 8, 10


@cache
def taught():
    """A model that has learnt some sentences by heart, of 3 to 10 tokens, the sources, and them."""
    torch.manual_seed(0)
    model, source = transformer(), tokens(5)
    target = tokens(5, words=END, n=LONGEST)
    for row, n in zip(target, (3, 9, 5, 10, 7), strict=True):
        row[n - 1 :] = END
    before = torch.cat([torch.full((5, 1), START), target[:, :-1]], 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        loss = nn.functional.cross_entropy(model(source, before).mT, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.02
    return model, source, target


def test_it_writes_what_it_has_learnt():
    model, source, target = taught()
    written = model.generate(source, start=START, end=END, length=LONGEST)
    assert torch.equal(written, target)


def test_what_has_ended_stays_so():
    """Here some word stands for the end, after which the model would go on."""
    model, source, _ = taught()
    free = model.generate(source, start=START, end=OTHER, length=LONGEST)  # no such token
    end = int(free[0, 1])
    written = model.generate(source, start=START, end=end, length=LONGEST)
    expected = free.where((free == end).cumsum(1) - (free == end).long() < 1, end)
    longest = int((expected != end).sum(1).max()) + 1
    assert torch.equal(written, expected[:, :longest])
    assert (free[0, 2:] != end).any()


def test_it_keeps_no_graph():
    model, source, _ = taught()
    with pytest.MonkeyPatch.context() as patch:
        step, logits = model.step, []
        patch.setattr(model, "step", lambda *args: logits.append(step(*args)) or logits[-1])
        model.generate(source, start=START, end=END, length=2)
    assert len(logits) == 2
    assert not any(y.requires_grad for y, _ in logits)


def test_each_sample_writes_as_if_alone():
    """As soon as it has ended no more is asked of it."""
    model, source, target = taught()
    for x, y in zip(source, target, strict=True):
        n = int((y == END).nonzero()[0]) + 1
        alone = model.generate(x, start=START, end=END, length=LONGEST)
        assert torch.equal(alone, y[:n])
    short = model.generate(source[:3], start=START, end=END, length=LONGEST)
    assert torch.equal(short, target[:3, :9])


def test_it_stops_at_the_length():
    model, source, target = taught()
    written = model.generate(source, start=START, end=END, length=4)
    assert torch.equal(written, target[:, :4])


def test_greedy_is_the_likeliest_without_a_cache():
    """Also of a source that it does not know, on times of its own."""
    model, *_ = taught()
    source, over = tokens(20), times(M, 20)
    written = torch.full((20, 1), START)
    for _ in range(LONGEST):
        following = model(source, written, over)[:, -1:].argmax(-1)
        written = torch.cat([written, following], 1)
    got = model.generate(source, over, start=START, end=OTHER, length=LONGEST)  # no such token
    assert torch.equal(got, written[:, 1:])
    assert len(got.unique(dim=0)) > 5


# The contracts


def test_padding_changes_nothing():
    """Wherever it stands, whatever it holds."""
    model = transformer()
    source, target = tokens(), tokens(words=OTHER, n=N)
    y = model(source, target)
    longer, much = torch.full((M + 3,), -100), torch.full((N + 4,), 10**6)
    there, here = torch.zeros(M + 3).bool(), torch.zeros(N + 4).bool()
    there[torch.randperm(M + 3)[:M]] = True
    here[torch.randperm(N + 4)[:N]] = True
    longer[there], much[here] = source, target
    z = model(longer, much, token_domain(there), token_domain(here))
    assert difference(z[here], y) < TIGHT


def test_padding_of_fields_may_be_nan():
    model = transformer(2, 3)
    source, target = torch.randn(M, 2), torch.randn(N, 3)
    over, at = times(M), times(N)
    y = model(source[:-2], target[:-3], over.take(slice(M - 2)), at.take(slice(N - 3)))
    source[-2:], target[-3:] = math.nan, math.nan
    over.weights[-2:], at.weights[-3:] = 0, 0
    source.requires_grad_()
    z = model(source, target, over, at)[:-3]
    assert difference(z, y) < TIGHT
    z.sum().backward()
    gradients = [source.grad, *(p.grad for p in model.parameters())]
    assert all(g.isfinite().all() for g in gradients)


@every_encoding
def test_a_ragged_batch_is_a_loop(encoding):
    model = transformer(encoding=encodings()[encoding])
    sources, targets = [times(M), times(M - 3)], [times(N), times(N - 2)]
    source, target = tokens(2), tokens(2, words=OTHER, n=N)
    y = model(source, target, stack(sources), stack(targets))
    for i, (over, at) in enumerate(zip(sources, targets, strict=True)):
        alone = model(source[i, : over.size], target[i, : at.size], over, at)
        assert difference(y[i, : at.size], alone) < TIGHT


@every_encoding
def test_the_order_in_memory_is_no_order(encoding):
    model = transformer(encoding=encodings()[encoding])
    source, target, over, at = tokens(), tokens(words=OTHER, n=N), times(M), times(N)
    y = model(source, target, over, at)
    i, j = torch.randperm(M), torch.randperm(N)
    z = model(source[i], target[j], over.take(i), at.take(j))
    assert difference(z, y[j]) < TIGHT


def halved(x, domain, k):
    """Token k twice at its place, with half the weight each."""
    index = torch.cat([torch.arange(domain.size), torch.tensor([k])])
    weights = domain.weights[index]
    weights[[k, -1]] /= 2
    return x[index], Domain(domain.points[index], weights)


@every_encoding
def test_a_token_in_two_halves_is_one(encoding):
    model = transformer(encoding=encodings()[encoding])
    source, target, over, at = tokens(), tokens(words=OTHER, n=N), times(M), times(N)
    y = model(source, target, over, at)
    (source, over), (target, at) = halved(source, over, 2), halved(target, at, 3)
    z = model(source, target, over, at)
    assert difference(z, torch.cat([y, y[3:4]])) < TIGHT


def test_one_token_more_is_another_sentence():
    """What the contracts above would not see if nothing were heard at all."""
    model = transformer()
    source, target = tokens(), tokens(words=OTHER, n=N)
    longer = torch.cat([source, source[2:3]])
    assert difference(model(longer, target), model(source, target)) > 1e-3
    assert difference(model(source, target), model(source, target.roll(1))) > 1e-3


# The blocks


@every_order
def test_a_block_by_the_keys_and_values_it_reads(norm_first):
    block = AutoregressiveBlock(C, H, norm_first=norm_first, atoms=True)
    x, memory, at, over = torch.randn(N, C), torch.randn(M, C), times(N), times(M)
    y = block(x, at, memory, over)
    read = block.key_values(memory, over)
    assert torch.equal(block(x, at, read), y)
    first, heard = block.run(x[:5], at.take(slice(5)), read)
    rest, heard = block.run(x[5:], at, read, past=heard)
    assert difference(torch.cat([first, rest]), y) < TIGHT
    assert heard.key.shape == (H, N, C // H)


def test_no_two_parts_share_parameters():
    """Each attention of each block has an encoding of its own."""
    encoding = Rotary(1, H, C // H)
    decoder = AutoregressiveDecoder(2, C, H, encoding=encoding)
    waves = [a.encoding for b in decoder.blocks for a in (b.attention, b.self_attention)]
    parts = [p for wave in [encoding, *waves] for p in wave.parameters()]
    assert len({id(p) for p in parts}) == len(parts) == 5
    model = transformer(encoding=encodings()["fourier"])
    first, second = model.source_position, model.target_position
    assert not {*map(id, first.parameters())} & {*map(id, second.parameters())}


# Plain data


@every_encoding
def test_built_again_from_a_checkpoint(encoding, tmp_path):
    model = transformer(
        out=4, encoding=encodings()[encoding], norm_first=True, qk_norm=True, atoms=False
    )
    path = tmp_path / "model.pt"
    save_checkpoint(path, {"model": describe(model), "state": model.state_dict()})
    state = load_checkpoint(path)
    again = build(state["model"])
    again.load_state_dict(state["state"])
    given = tokens(3), tokens(3, words=OTHER, n=N), None, times(N, 3)
    assert torch.equal(again(*given), model(*given))
    with pytest.raises(ValueError, match="nodes of a time grid need a target_domain"):
        model(*given[:2])


@every_encoding
def test_single_precision(encoding):
    """The weights are float64 all the same, and so are the times of a domain."""
    model = transformer(encoding=encodings()[encoding])
    source, target = torch.randn(M, WORDS), tokens(words=OTHER, n=N)
    over, at = times(M), times(N)
    y = model(source, target, over, at)
    z = model.float()(source, target, over, at)
    assert z.dtype == torch.float32
    assert difference(z, y) < 10 * ROUNDING[torch.float32]  # some layers, one after another


def test_half_precision_tells_many_tokens_apart():
    """It has no 257, so times must not be rounded to it: that would be 256 once more."""
    model, n = transformer().bfloat16(), 258
    source, target = tokens(n=n), tokens(words=OTHER, n=n)
    other = target.clone()
    other[-1] = (other[-1] + 1) % OTHER  # at the time 257
    y, z = model(source, target), model(source, other)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y[:-1], z[:-1])


# What is refused


def test_a_domain_of_other_axes_is_refused():
    model, source, target = transformer(), tokens(3), tokens(3, words=OTHER, n=N)
    with pytest.raises(ValueError, match=r"source_domain must have \(3, 6\) points, .* got \(6,\)"):
        model(source, target, times(M))
    with pytest.raises(
        ValueError, match=r"target_domain must have \(3, 8\) points, .* got \(3, 9\)"
    ):
        model(source, target, None, times(N + 1, 3))
    _, state = model.step(model.encode(source), target)
    with pytest.raises(
        ValueError, match=r"target_domain must have \(3, 9\) points, .* got \(3, 1\)"
    ):
        model.step(state, target[:, :1], times(1, 3))  # not the new ones alone


@pytest.mark.parametrize("new", [[0.5], [1.0], [0.0, 3.0]])
def test_times_that_do_not_go_on_are_refused(new):
    model, y = transformer(), tokens(words=OTHER, n=2 + len(new))
    _, state = model.step(model.encode(tokens()), y[:2])
    at = Domain(torch.tensor([0.0, 1.0, *new])[:, None], torch.ones(2 + len(new)))
    with pytest.raises(ValueError, match="new points must be later than all so far"):
        model.step(state, y[2:], at)


def test_a_past_that_is_another_is_refused():
    model, y = transformer(), tokens(words=OTHER, n=3)
    _, state = model.step(model.encode(tokens()), y[:2])
    with pytest.raises(ValueError, match="must begin with the 2 points so far, as they were"):
        model.step(state, y[2:], Domain(torch.tensor([0.0, 1.5, 2.0])[:, None], torch.ones(3)))
    with pytest.raises(ValueError, match="atoms keep their weights"):
        model.step(state, y[2:], Domain(torch.arange(3.0)[:, None], 2 * torch.ones(3)))


def test_a_source_of_another_batch_is_refused():
    with pytest.raises(ValueError, match=r"batch axes \(\) of the source, got \(3, 8\): expand"):
        transformer()(tokens(), tokens(3, words=OTHER, n=N))


def test_nothing_gives_nothing():
    model, source, target = transformer(), tokens(3), tokens(3, words=OTHER, n=N)
    assert model(source, target[:, :0]).shape == (3, 0, OTHER)
    assert model(source[:, :0], target).shape == (3, N, OTHER)
    assert model(source[:0], target[:0]).shape == (0, N, OTHER)
    assert model.generate(source[:, :0], start=0, end=1, length=4).shape[0] == 3
    assert model.generate(source[:0], start=0, end=1, length=4).shape == (0, 0)


def test_nothing_to_write_is_refused():
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        transformer().generate(tokens(), start=0, end=1, length=0)
