"""The transformer of 2017 as it is known from language: it reads digits and spells the number.

    4 7 0 1 3  ->  forty-seven thousand thirteen

Digits and letters are tokens at the times 0, 1, 2, ..., each an atom of the measure, and the ends
of the shorter rows have measure zero. The model is trained on random numbers of up to five digits
and asked for ones that it has not seen; six digits, which it never saw, are beyond it. Each letter
is an integral over the letters before it and one over the digits: where that one looks is drawn, if
a folder is named. ``--quick`` goes through the motions in seconds.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from opformer.embedding import token_domain
from opformer.sequence import Transformer

ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"]
ONES += [*TEENS, "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

PADDING, START, END = range(3)
LETTERS = "...- abcdefghijklmnopqrstuvwxyz"  # the first three are the tokens above
CODE = {letter: i for i, letter in enumerate(LETTERS)}
DIGITS, LONGEST, UNSEEN = 5, 80, 1000


def words(n: int) -> str:
    """A number under a million as it is spoken."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10 - 2] + (f"-{ONES[n % 10]}" if n % 10 else "")
    unit, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    return f"{words(n // unit)} {name}" + (f" {words(n % unit)}" if n % unit else "")


class Batch(NamedTuple):
    """Digits, the letters written so far, and those that come next; padded with zeros."""

    source: Tensor
    target: Tensor
    following: Tensor


def batch(numbers: list[int]) -> Batch:
    """The same as tokens."""
    digits = [[int(digit) + 1 for digit in str(n)] for n in numbers]
    letters = [[CODE[letter] for letter in words(n)] for n in numbers]
    return Batch(
        padded(digits),
        padded([[START, *row] for row in letters]),
        padded([[*row, END] for row in letters]),
    )


def padded(rows: list[list[int]]) -> Tensor:
    """Rows of one length."""
    longest = max(map(len, rows))
    return torch.tensor([row + [PADDING] * (longest - len(row)) for row in rows])


def spelled(tokens: Tensor) -> list[str]:
    """The text of each row up to its end."""
    rows = (row[: row.index(END)] if END in row else row for row in tokens.tolist())
    return ["".join(LETTERS[token] for token in row) for row in rows]


def train(model: Transformer, steps: int, unseen: set[int], rng: random.Random) -> None:
    """Teach it the next letter, given the true ones before; the loss is an integral, too."""
    rate = 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    bar = tqdm(range(steps), desc="training", unit="step", disable=None)
    for _ in bar:
        source, target, following = batch([drawn(rng, unseen) for _ in range(64)])
        at = token_domain(target != PADDING)
        logits = model(source, target, token_domain(source != PADDING), at)
        loss = F.cross_entropy(logits.mT, following, reduction="none")  # (b, n)
        loss = at.integrate(loss).sum() / at.total.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.4f}")


def drawn(rng: random.Random, unseen: set[int]) -> int:
    """A number of any length, but none of the unseen ones."""
    n = rng.randrange(10 ** rng.randint(1, DIGITS))
    return drawn(rng, unseen) if n in unseen else n


def spell(model: Transformer, numbers: list[int]) -> list[str]:
    """What the model makes of them, letter by letter."""
    source = batch(numbers).source
    domain = token_domain(source != PADDING)
    return spelled(model.generate(source, domain, start=START, end=END, length=LONGEST))


def spell_again(model: Transformer, numbers: list[int]) -> list[str]:
    """The same without a cache: for each letter all those before it are read again."""
    source = batch(numbers).source
    domain = token_domain(source != PADDING)
    written = torch.full((len(numbers), 1), START)
    while written.shape[1] <= LONGEST and not (written == END).any(1).all():
        with torch.no_grad():
            following = model(source, written, domain)[:, -1:].argmax(-1)
        written = torch.cat([written, following], 1)
    return spelled(written[:, 1:])


def accuracy(model: Transformer, numbers: list[int]) -> float:
    """Share of the numbers that are spelled without a mistake."""
    right = zip(spell(model, numbers), map(words, numbers), strict=True)
    return sum(got == expected for got, expected in right) / len(numbers)


def picture(model: Transformer, number: int, path: Path) -> None:
    """Where each letter looks: the kernels of the last cross-attention, head by head."""
    import matplotlib.pyplot as plt

    source, target, _ = batch([number])
    attention, seen = model.decoder.blocks[-1].attention, []
    hook = attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    with torch.no_grad():
        model(source, target)
        kernel = attention.kernel(*seen[0])[0]  # (h, n, m)
    hook.remove()
    figure, axes = plt.subplots(1, len(kernel), figsize=(7, 9), layout="constrained")
    for i, (ax, head) in enumerate(zip(axes, kernel, strict=True)):
        ax.imshow(head.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        ax.set_xticks(range(source.shape[1]), str(number))
        ax.set_yticks(range(len(head)), [*words(number), "end"] if i == 0 else [])
        ax.set_title(f"head {i + 1}")
    axes[0].set_ylabel("letter that is written next")
    figure.supxlabel("digit, by its share (white 0, blue 1) in the last cross-attention")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Train, spell, count the mistakes, and time the cache."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, help="folder of the picture")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    rng = random.Random(0)
    torch.manual_seed(0)
    unseen = set(rng.sample(range(10**DIGITS), UNSEEN))
    model = Transformer(11, len(LETTERS), channels=64, heads=4, layers=2, hidden=256)
    before = time.perf_counter()
    train(model, 40 if options.quick else 700, unseen, rng)
    print(f"trained in {time.perf_counter() - before:.0f} s")

    asked = sorted(unseen)[:: 100 if options.quick else 1]
    for n in asked[:: len(asked) // 5]:
        print(f"{n:>6}  {spell(model, [n])[0]}")
    longer = [rng.randrange(10**DIGITS, 10 ** (DIGITS + 1)) for _ in range(len(asked) // 5)]
    exact = accuracy(model, asked)
    print(f"spelled without a mistake: {exact:.1%} of {len(asked)} unseen numbers,")
    print(f"{accuracy(model, longer):.1%} of {len(longer)} with one digit more than any seen")

    seconds, texts = [], []
    for way in (spell, spell_again):
        before = time.perf_counter()
        texts.append(way(model, asked[-100:]))
        seconds.append(time.perf_counter() - before)
    print(f"the cache makes writing {seconds[1] / seconds[0]:.1f} times as fast")
    assert texts[0] == texts[1], "what is remembered is what would be read again"
    assert options.quick or exact > 0.98, "nearly all are right"
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        picture(model, 47013, options.out / "attention.png")


if __name__ == "__main__":
    main()
