"""What lines of text are: lengths, hours, origins, phonemes. For a model card, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from workers.training.coverage import OFTEN_ENOUGH, counts, pairs
from workers.training.lines import Line
from workers.training.sentences import BANDS, band, words
from workers.training.sources import SOURCES, WORD_LISTS

PHONEMES_PER_SECOND = 16  # of speech, about


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in cells)


def hours(lines: Sequence[Line]) -> float:
    """Of speech, by the count of phonemes."""
    return sum(len(line.phonemes) for line in lines) / PHONEMES_PER_SECOND / 3600


def lengths(lines: Sequence[Line]) -> str:
    of_band = Counter(band(line.text) for line in lines)
    rows = (
        (f"{first} to {last}", of_band[place], f"{of_band[place] / len(lines):.1%}")
        for place, (first, last, _) in enumerate(BANDS)
    )
    return table(("words", "lines", "share"), rows)


def origins(lines: Sequence[Line]) -> str:
    """Every source with its licence, then each kind of sentence made from templates."""
    of_origin = Counter(line.origin for line in lines)
    rows = [(of_origin.pop(source.name, 0), source.name, source.licence, source.origin) for source in SOURCES]
    rows += [("", words.name, words.licence, f"{words.origin}: words in templates") for words in WORD_LISTS]
    rows += [(count, kind, "Apache-2.0", "templates of this project") for kind, count in sorted(of_origin.items())]
    return table(("lines", "name", "licence", "origin"), rows)


def spoken(lines: Sequence[Line]) -> str:
    phonemes, paired = counts([line.phonemes for line in lines])
    lines_of_pair = Counter(pair for line in lines for pair in pairs(line.phonemes))
    rare = sum(count < OFTEN_ENOUGH for count in lines_of_pair.values())
    of_each = ", ".join(f"`{phoneme}` {count:,}" for phoneme, count in phonemes.most_common())
    return (
        f"{sum(phonemes.values()):,} phonemes of {len(phonemes)} kinds; {len(paired):,} kinds of pairs, "
        f"{rare:,} of them in fewer than {OFTEN_ENOUGH} lines.\n\n{of_each}"
    )


def describe(lines: Sequence[Line]) -> str:
    count = sum(len(words(line.text)) for line in lines)
    head = f"{len(lines):,} lines, {count:,} words, about {hours(lines):.1f} hours of speech."
    return "\n\n".join((head, lengths(lines), origins(lines), spoken(lines)))
