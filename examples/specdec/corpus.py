"""Make the parallel text: pairs of all catalogues, cleaned, each once, split by hash.

    python -m examples.specdec.packages packages
    python -m examples.specdec.corpus packages -o corpus

`train.tsv` and `held_out.tsv` hold a pair a line, English and German parted by a tab;
`sources.json` says which packages they are from, in which version and under which licences.
The order depends on the text alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from examples.specdec.catalogues import CatalogueError, read_catalogue
from examples.specdec.packages import VERSION_FILE

HELD_OUT_SHARE = 64  # one English text in this many is held out
LONGEST_WORDS, LONGEST_SIGNS = 60, 400
WORST_RATIO = 3.0
LETTERS = re.compile(r"[^\W\d_]")
CREDITS = ("NAME OF TRANSLATORS", "EMAIL OF TRANSLATORS", "translator-credits")
Pair = tuple[str, str]


def is_fit(english: str, german: str) -> bool:
    """Whether a pair is a translation to learn from."""
    if not english or not german or english == german or "\t" in english + german:
        return False
    if any(credit in english for credit in CREDITS):
        return False
    if len(english.split()) > LONGEST_WORDS or max(len(english), len(german)) > LONGEST_SIGNS:
        return False
    ratio = (len(german) + 8) / (len(english) + 8)
    if not 1 / WORST_RATIO < ratio < WORST_RATIO:
        return False
    return all(_is_text(side) for side in (english, german))


def _is_text(side: str) -> bool:
    return 2 * len(LETTERS.findall(side)) > len(side) and side.isprintable()


def key_of(english: str) -> str:
    """What two pairs share when they may not stand on both sides of the split."""
    return hashlib.sha256("".join(LETTERS.findall(english.lower())).encode()).hexdigest()


def is_held_out(english: str) -> bool:
    """Whether the pair belongs to the held-out set."""
    return int(key_of(english)[:8], 16) % HELD_OUT_SHARE == 0


def distinct(pairs: Iterable[Pair]) -> list[Pair]:
    """One pair per English text, the most frequent translation, ordered by hash.

    Texts that differ in case, digits or punctuation alone count once, so that neither a held-out
    text nor a part of the training text repeats itself.
    """
    counts = Counter(pairs)
    best: dict[str, tuple[int, Pair]] = {}
    for pair, count in sorted(counts.items()):
        key = key_of(pair[0])
        if key not in best or count > best[key][0]:
            best[key] = (count, pair)
    return [pair for _, (_, pair) in sorted(best.items())]


def package_pairs(folder: Path) -> list[Pair]:
    """Fit pairs of one unpacked package."""
    pairs: list[Pair] = []
    for path in sorted(folder.rglob("*.mo")):
        try:
            pairs += [pair for pair in read_catalogue(path) if is_fit(*pair)]
        except CatalogueError as error:
            print(f"left out: {error}")
    return pairs


def licences(folder: Path) -> list[str]:
    """Short names of the licences that a package's copyright file lists."""
    names: set[str] = set()
    for path in sorted(folder.glob("usr/share/doc/*/copyright*")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("License:") and line[8:].strip():
                names.add(line[8:].strip())
    return sorted(names)


def main() -> None:
    """Read every package of the folder and write the corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    pairs: list[Pair] = []
    sources = []
    for folder in sorted(arguments.packages.iterdir()):
        found = package_pairs(folder)
        version = (folder / VERSION_FILE).read_text().strip()
        sources.append(
            {
                "package": folder.name,
                "version": version,
                "pairs": len(found),
                "licences": licences(folder),
            }
        )
        pairs += found
    whole = distinct(pairs)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, held_out in (("train", False), ("held_out", True)):
        part = [pair for pair in whole if is_held_out(pair[0]) == held_out]
        text = "".join(f"{english}\t{german}\n" for english, german in part)
        (arguments.output / f"{name}.tsv").write_text(text, encoding="utf-8")
        print(f"{name}: {len(part)} pairs")
    (arguments.output / "sources.json").write_text(json.dumps(sources, indent=1) + "\n")


if __name__ == "__main__":
    main()
