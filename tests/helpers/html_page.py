"""HTML that is well-formed, runs nothing and fetches nothing."""

from html.parser import HTMLParser


class Html(HTMLParser):
    """HTML whose elements are all closed, in order, and that runs and fetches nothing."""

    def __init__(self, html):
        super().__init__()
        self.open, self.text = [], ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in (
            "div",
            "style",
            "p",
            "span",
            "table",
            "tr",
            "th",
            "td",
            "svg",
            "rect",
            "title",
            "details",
            "summary",
        ), tag
        assert not [
            name for name, _ in attributes if name.startswith("on") or name in ("src", "href")
        ]
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data
