"""docs/articles.md says what examples/articles.py measures, and has every section and figure.

Its blocks of code run in test_docs.py.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import articles  # noqa: E402

PAGE = (ROOT / "docs" / "articles.md").read_text(encoding="utf-8")
PICTURES = ROOT / "docs" / "figures"
# What is read: no code, no formulas, and any white space is one space.
PROSE = re.sub(r"```.*?```|\$\$.*?\$\$|\$.*?\$|`.*?`|\]\(.*?\)", "‥", PAGE, flags=re.DOTALL)
PROSE = re.sub(r"\s+", " ", PROSE.partition("## References")[0])
NUMBER = r"(\d+(?:\.\d+)?)"


@lru_cache
def numbers(figure):
    """What the script computes, in torch's usual type, as the script does."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        return articles.FIGURES[figure][0]()
    finally:
        torch.set_default_dtype(before)


def at(figure, key, *index):
    value = numbers(figure)[key]
    for i in index:
        value = value[i]
    return float(value)


# Sentences of the page, # for a number, and what each number is.
COMPUTED = [
    (
        "a channel of a word is then # in root mean square, and one of the sinusoids that are "
        "added to it #, at any width. Times ‥ the word has #.",
        lambda: [at("embedding", name, 6) for name in ("plain", "position", "scaled")],
    ),
    (
        "falls with observed order # on graded meshes and # on those that are pressed together, to "
        "# % and # % on 16 641 nodes.",
        lambda: [
            at("convergence", "warped_order"),
            at("convergence", "pressed_order"),
            100 * at("convergence", "warped", -1),
            100 * at("convergence", "pressed", -1),
        ],
    ),
    (
        "another integral, which is wrong by # % and # %.",
        lambda: [100 * at("convergence", f"{name}_plain", -1) for name in ("warped", "pressed")],
    ),
    (
        "of # sources # count (the exponential of the entropy), for any ‥. Without it # count at ‥ "
        "and # at 2048",
        lambda: [
            at("saturation", "sources"),
            at("saturation", "scaled_count", 7),
            at("saturation", "plain_count", 7),
            at("saturation", "plain_count", -1),
        ],
    ),
    (
        "the observed order is #; with equal weights the error stays at #.",
        lambda: [at("harmonic", "order"), at("harmonic", "plain", -1)],
    ),
    (
        "takes the wrong side for # of # pairs",
        lambda: [at("masks", "wrong"), at("masks", "pairs")],
    ),
    (
        "the observed order of the error is # with cells that are cut and # with whole atoms. "
        "Equal weights on the same grid, which is torch's triangular mask, end at an error of #.",
        lambda: [
            at("volterra", "cell_order"),
            at("volterra", "atom_order"),
            at("volterra", "plain", -1),
        ],
    ),
    (
        "it rises again by # of its largest value at ‥, by # at 128 and by less than # at 512.",
        lambda: [
            at("distances", "32_rise"),
            at("distances", "128_rise"),
            0.01,  # an upper bound: see below
        ],
    ),
    (
        "the closest of the first 10 000 positions are neighbours, # apart",
        lambda: [at("distances", "closest")],
    ),
]
# Of fits and deep gradients: their last digits depend on the machine's way to add.
FITTED = [
    (
        "Between the ends their centres of mass lie # before the target and # after it",
        lambda: [-min(numbers("heads")["lag"]), max(numbers("heads")["lag"])],
    ),
    (
        "changes the state by # % of its size in the second block and by # % in the last.",
        lambda: [100 * at("corrections", "fitted", i, 0) for i in (1, 3)],
    ),
    (
        "the norm of the whole gradient is # with 8 blocks and # with 64; with Post-LN it grows "
        "from # to #. The last of 64 blocks then has # times the gradient of the first, and its "
        "size, #,",
        lambda: [
            *(at("gradients", "pre_total", i) for i in (2, 5)),
            *(at("gradients", "post_total", i) for i in (2, 5)),
            at("gradients", "post_blocks", -1) / at("gradients", "post_blocks", 0),
            at("gradients", "post_last", -1),
        ],
    ),
    (
        "the last block's falls from # with 2 blocks to # with 64",
        lambda: [at("gradients", "pre_last", i) for i in (0, -1)],
    ),
    (
        "position × position makes # % of the squared scores",
        lambda: [100 * at("terms", "earlier", 3)],
    ),
    (
        "content × content makes # %. As drawn, position × position has # %, and without the ‥ of "
        "A2 it has # %.",
        lambda: [
            100 * at("terms", name, i) for name, i in (("same", 0), ("drawn", 3), ("unscaled", 3))
        ],
    ),
    (
        "its error is #; with positions it is #.",
        lambda: [at("positions", "without_error"), at("positions", "with_error")],
    ),
]


def find(sentence):
    """Where the page says it; once."""
    pattern = NUMBER.join(re.escape(part) for part in sentence.split("#"))
    found = list(re.finditer(pattern, PROSE))
    assert len(found) == 1, f"{len(found)} times on the page: {sentence}"
    return found[0]


def last_digit(text):
    return 10.0 ** -len(text.partition(".")[2])


@pytest.mark.parametrize(("sentence", "values"), COMPUTED)
def test_computed_numbers_are_stated_to_their_last_digit(sentence, values):
    texts = find(sentence).groups()
    for text, value in zip(texts, values(), strict=True):
        assert float(text) == pytest.approx(value, abs=0.51 * last_digit(text))


@pytest.mark.parametrize(("sentence", "values"), FITTED)
def test_fitted_numbers_are_stated(sentence, values):
    texts = find(sentence).groups()
    for text, value in zip(texts, values(), strict=True):
        assert float(text) == pytest.approx(value, rel=0.15, abs=0.51 * last_digit(text))


def test_no_other_number_is_stated():
    """Whatever has decimals or is a percentage is in one of the sentences above."""
    spans = [find(sentence).span() for sentence, _ in (*COMPUTED, *FITTED)]
    others = [
        PROSE[max(0, match.start() - 40) : match.end() + 20]
        for match in re.finditer(r"\d+\.\d+|\d+ %", PROSE)
        if not any(a <= match.start() and match.end() <= b for a, b in spans)
    ]
    assert not others


def test_every_section_has_its_heading_in_order():
    headings = re.findall(r"^### ([AB]\d+)\. \S", PAGE, re.MULTILINE)
    assert headings == [f"A{i}" for i in range(1, 11)] + [f"B{i}" for i in range(1, 6)]


def test_every_figure_is_shown_and_small():
    shown = re.findall(r"^!\[[^\]]{20,}\]\(figures/(\w+)\.png\)$", PAGE, re.MULTILINE)
    assert sorted(shown) == sorted(articles.FIGURES)
    files = {path.stem: path.stat().st_size for path in PICTURES.glob("*")}
    assert sorted(files) == sorted(shown)
    assert max(files.values()) <= 40_000


def test_the_claims_behind_the_numbers():
    """What the pictures show, where the text has no number for it."""
    scale, drawn = numbers("saturation"), numbers("gradients")
    assert max(scale["scaled_count"][2:]) < 1.05 * min(scale["scaled_count"][2:])
    assert scale["plain_slope"][-1] < scale["scaled_slope"][-1] / 3
    assert min(drawn["post_last"][2:]) > drawn["post_last"][0]
    assert drawn["pre_last"] == sorted(drawn["pre_last"], reverse=True)
    places = numbers("distances")
    assert places["512_rise"] < 0.01
    assert places["closest"] ** 2 == pytest.approx(512 * (1 - float(places[512][1])), rel=1e-9)
    assert max(places[f"{width}_moved"] for width in (32, 128, 512)) < 1e-12
    assert max(numbers("terms")[f"{task}_error"] for task in ("earlier", "same")) < 0.1
