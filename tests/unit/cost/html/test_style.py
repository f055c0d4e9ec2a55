"""The colours of our pages, by the numbers that accessibility is measured in."""

from __future__ import annotations

from itertools import combinations

import pytest

from twinbus.cost.html.style import DARK, LIGHT, SERIES

Colour = tuple[float, float, float]
# How colours look to people without one kind of cone, on linear light (Machado, Oliveira and
# Fernandes, 2009, severity 1).
EYES: dict[str, tuple[Colour, Colour, Colour]] = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no blue": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
# The steps of WCAG 2.2: text, and what is to be seen without being read.
TEXT_CONTRAST, SHAPE_CONTRAST = 4.5, 3.0
# Differences in CIELAB; 2 is just seen side by side, 20 across a legend.
APART = 20


def linear(colour: str) -> Colour:
    def channel(start: int) -> float:
        value = int(colour[start : start + 2], 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    return channel(1), channel(3), channel(5)


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(colour: Colour) -> Colour:
    red, green, blue = (min(1.0, max(0.0, value)) for value in colour)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def difference(one: str, other: str, eye: str) -> float:
    def seen(colour: str) -> Colour:
        light = linear(colour)
        rows = EYES[eye]
        red, green, blue = (sum(a * b for a, b in zip(r, light, strict=True)) for r in rows)
        return lab((red, green, blue))

    squares = ((a - b) ** 2 for a, b in zip(seen(one), seen(other), strict=True))
    return sum(squares) ** 0.5


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_kinds_are_told_apart_by_every_eye(colours: dict[str, str], eye: str) -> None:
    """C3: the plots do not need all three cones."""
    close = [
        (one, other, round(difference(colours[one], colours[other], eye), 1))
        for one, other in combinations(SERIES, 2)
        if difference(colours[one], colours[other], eye) < APART
    ]
    assert close == []


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_bars_stand_out_from_what_is_behind_them(colours: dict[str, str]) -> None:
    """C3: the page is readable in light and dark."""
    faint = [
        (front, back, round(contrast(colours[front], colours[back]), 2))
        for fronts, backs, least in (
            (("text", "pale", "link"), ("page", "card", "warn-card"), TEXT_CONTRAST),
            (SERIES, ("card",), SHAPE_CONTRAST),
            (("warn", "zero"), ("card",), SHAPE_CONTRAST),
        )
        for front in fronts
        for back in backs
        if contrast(colours[front], colours[back]) < least
    ]
    assert faint == []


def test_both_schemes_name_the_same_colours() -> None:
    assert list(LIGHT) == list(DARK)
