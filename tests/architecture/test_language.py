"""The words of the project: sentences that users meet, and no word of the old language.

The golden files hold every sentence once, so that a change of one is read by a person. Other tests
assert on error classes and attributes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sentences import ROOT, SURFACES, collect, golden_file

PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

# Not in a sentence of an error or a log line: who did it, how to say what is missing, and what
# machines do. The reason for each is a rule of docs/GLOSSARY.md.
NOT_IN_SENTENCES = {
    r"\b(nobody|somebody|everybody|whoever|anybody)\b": "name the actor: broker, client, receiver",
    r"\b(told|tells?|telling|says?|said|heard?|hears)\b": "machines return, report or respond",
    r"\bis no\b": "write: is not a",
    r"(^|[.:] )there (is|are|was) no\b": "write: <Kind> '<name>' not found in <where>",
    r"\b(at|come|comes|came|bring|brought|way) home\b": "write: to the primary",
    r"\b(is|was|are|were) away\b": "write: unreachable",
    r"\bthe books\b": "write: metering log, or reconciliation",
}

# The old language: metaphors, as words of their own or as parts of identifiers.
OLD_WORDS = (
    "bell", "bells", "rung", "desk", "desks", "brain", "brains", "office", "offices", "crew",
    "crews", "lane", "lanes", "shelf", "shelves", "fates", "journey", "journeys", "parcel",
    "parcels", "slip", "slips", "knock", "knocks", "nobody", "somebody", "everybody", "whoever",
    "caretaker", "caretakers", "moody", "told",
)  # fmt: skip
OLD_PHRASES = (
    r"\b(?:at|come|comes|came|bring|brings|brought|way) home\b",
    r"\bthe books\b",
)


def old_words(text: str) -> Iterator[str]:
    """Words of the old language, also inside of snake_case and CamelCase."""
    text = re.sub(r"`tests/[\w./]+::\w+`", "", text)  # Names of tests are sentences of their own.
    words = {each.lower() for each in re.findall(r"[A-Z]?[a-z]+", text)}
    yield from sorted(words.intersection(OLD_WORDS))
    for phrase in OLD_PHRASES:
        yield from sorted(set(re.findall(phrase, text, re.IGNORECASE)))


@pytest.mark.parametrize("surface", SURFACES)
def test_every_sentence_is_in_its_golden_file(surface: str) -> None:
    golden = golden_file(surface).read_text(encoding="utf-8").splitlines()
    changed = list(difflib.unified_diff(golden, collect(surface), "golden", "src", "", "", 0, ""))
    assert not changed, (
        "Read the changed sentences, then run: python -m tests.support.sentences\n"
        + "\n".join(changed[:40])
    )


@pytest.mark.parametrize("surface", SURFACES)
def test_sentences_name_the_actor_and_the_fact(surface: str) -> None:
    offences = [
        f"{sentence}\n    {advice}"
        for sentence in collect(surface)
        for pattern, advice in NOT_IN_SENTENCES.items()
        if re.search(pattern, sentence.partition(": ")[2], re.IGNORECASE)
    ]
    assert offences == []


@pytest.mark.parametrize("files", [SOURCES, PAGES], ids=["src", "pages"])
def test_no_word_of_the_old_language_occurs(files: list[Path]) -> None:
    offences = []
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            offences += [f"{name}:{number} {each}" for each in old_words(line)]
    assert offences == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("self._bell = LongPollWatcher()", ["bell"]),
        ("class SendOffice:", ["office"]),
        ("It comes home later.", ["comes home"]),
        ("labelled, retold, deskew", []),
    ],
)
def test_an_old_word_is_seen(text: str, found: list[str]) -> None:
    assert list(old_words(text)) == found
