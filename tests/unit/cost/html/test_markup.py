"""Markup that cannot be broken by what it shows."""

from __future__ import annotations

import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.cost.html.markup import Markup, escape, isolate, join, tag


class Read(HTMLParser):
    """What a browser would make of it: elements, and text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


LETTERS = st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")))
PIECES = st.sampled_from(["<b>", "</p>", "<!--", "-->", '"', "'", ">", "&amp;", "&#60;", " x="])


@given(st.lists(PIECES | LETTERS).map("".join))
def test_text_is_shown_as_it_is_and_never_becomes_an_element(text: str) -> None:
    page = Read(tag("p", text, title=text))
    assert page.elements == [("p", {"title": text})]
    assert page.text == text


@given(st.text())
def test_whatever_a_name_holds_the_page_can_be_written(text: str) -> None:
    shown = tag("p", text, title=text)
    shown.encode("utf-8")
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", r"a\u202eb"),
        ("a\x00b", r"a\u0000b"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\U000e0001"),
        ("a\nb", r"a\u000ab"),
        ("הזמנות", "הזמנות"),
    ],
)
def test_what_nobody_can_see_is_shown_by_its_number(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_markup_is_escaped_once() -> None:
    assert tag("b", tag("i", "<")) == "<b><i>&lt;</i></b>"
    assert join(["<", Markup("<br>")], between="\n") == "&lt;\n<br>"


def test_a_name_cannot_turn_its_neighbours_around() -> None:
    assert isolate("a\u2069\u202e<") == "\u2068a\\u2069\\u202e&lt;\u2069"


def test_attributes_have_the_names_of_html() -> None:
    assert tag("text", class_="a", text_anchor="end", x=1.5, y=None) == (
        '<text class="a" text-anchor="end" x="1.5"></text>'
    )
    assert tag("meta", name="referrer") == '<meta name="referrer">'
