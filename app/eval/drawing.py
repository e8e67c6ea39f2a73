"""What pictures are drawn of: lines, marks and words of an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B07D00", "#3A8FC0", "#222222", "#8C564B")
"""Okabe and Ito's, which the colour-blind tell apart, two of them darker for thin lines."""
SHAPES = ("circle", "square", "triangle", "diamond")


def mark(index: int, x: float, y: float, inner: str = "") -> str:
    colour = COLOURS[index % len(COLOURS)]
    match SHAPES[index // 2 % len(SHAPES) if index >= len(COLOURS) else index % len(SHAPES)]:
        case "circle":
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">{inner}</circle>'
        case "square":
            corners = [
                (x - 3.2, y - 3.2),
                (x + 3.2, y - 3.2),
                (x + 3.2, y + 3.2),
                (x - 3.2, y + 3.2),
            ]
        case "triangle":
            corners = [(x, y - 4.2), (x + 4.2, y + 3.4), (x - 4.2, y + 3.4)]
        case _:
            corners = [(x, y - 4.6), (x + 4.6, y), (x, y + 4.6), (x - 4.6, y)]
    return f'<polygon points="{points(corners)}" fill="{colour}">{inner}</polygon>'


def points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def path(places: Sequence[tuple[float, float]], colour: str, more: str) -> str:
    return f'<polyline points="{points(places)}" fill="none" stroke="{colour}" {more}/>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" {more}/>'


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'
