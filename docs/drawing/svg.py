"""Small SVG pictures in one style: boxes on a card, readable on light and dark pages.

They are at most 440 pixels wide, so a phone shows them whole, with letters of a readable size.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURES = Path(__file__).parents[1] / "pictures"

# The card has a colour of its own: a page may be dark where the reader's system is light.
STYLE = """
text { font: 13px ui-sans-serif, system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.small { font-size: 11px } .code { font-family: ui-monospace, Menlo, Consolas, monospace }
.dim { fill: #59636e } .bold { font-weight: 600 }
.card { fill: #f6f8fa } .line, .padding { stroke: #818b98; fill: none } .tip { fill: #818b98 }
.prompt { fill: #b6d4fe } .trained { fill: #8fdca4 } .masked { fill: #ffd8a8 }
.padding { stroke-dasharray: 3 2 } .plain { fill: #d8dee4 }
.shared { fill: #d9c8fa } .other { fill: #f9c9d9 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .dim { fill: #9da7b1 } .card { fill: #1c2128 }
  .line, .padding { stroke: #768390 } .tip { fill: #768390 }
  .prompt { fill: #1f4f8b } .trained { fill: #1f6f3d } .masked { fill: #8a5312 }
  .plain { fill: #3d444d } .shared { fill: #553c8f } .other { fill: #86365a }
}
"""


class Picture:
    """A picture of the given size in pixels; its text is for those who do not see it."""

    def __init__(self, width: float, height: float, text: str) -> None:
        self.width, self.height, self.text = width, height, text
        self.parts: list[str] = []

    def write(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Write a line of text with its middle at `y`."""
        self.parts.append(
            f'<text x="{x:g}" y="{y + 4.5:g}" class="{kind}" text-anchor="{anchor}">'
            f"{escape(text, quote=False)}</text>"
        )

    def box(self, x: float, y: float, width: float, height: float, kind: str, text: str = "",
            text_kind: str = "small code") -> None:  # fmt: skip
        """Draw a box with a text in the middle."""
        self.parts.append(
            f'<rect x="{x + 1:g}" y="{y + 1:g}" width="{width - 2:g}" height="{height - 2:g}" '
            f'rx="3" class="{kind}"/>'
        )
        if text:
            self.write(x + width / 2, y + height / 2, text, text_kind, "middle")

    def line(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw a line."""
        self.parts.append(f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" class="line"/>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw a line with a tip, down or to the right."""
        self.line(x, y, to_x, to_y)
        left, right = ((-4, -6), (4, -6)) if abs(to_y - y) > abs(to_x - x) else ((-6, -4), (-6, 4))
        points = [(to_x, to_y), *((to_x + dx, to_y + dy) for dx, dy in (left, right))]
        joined = " ".join(f"{px:g},{py:g}" for px, py in points)
        self.parts.append(f'<polygon points="{joined}" class="tip"/>')

    def brace(self, x: float, to_x: float, y: float, text: str) -> None:
        """Draw a bracket below a span, and its text."""
        self.parts.append(f'<path d="M{x + 2:g} {y:g}v5H{to_x - 2:g}v-5" class="line"/>')
        self.write((x + to_x) / 2, y + 16, text, "small dim", "middle")

    def legend(self, x: float, y: float, **texts: str) -> None:
        """Draw a box of each kind, and its text, in as many lines as they need."""
        left = x
        for kind, text in texts.items():
            width = 41 + 6.2 * len(text)
            if x + width > self.width:
                x, y = left, y + 22
            self.box(x, y - 8, 18, 16, kind)
            self.write(x + 23, y, text, "small dim")
            x += width

    def svg(self) -> str:
        """Return the file's text."""
        size = f'width="{self.width:g}" height="{self.height:g}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
                f'viewBox="0 0 {self.width:g} {self.height:g}" role="img">',
                f"<title>{escape(self.text, quote=False)}</title>",
                f"<style>{STYLE}</style>",
                f'<rect {size} rx="8" class="card"/>',
                *self.parts,
                "</svg>\n",
            ]
        )
