"""What Markdown holds, for the tests of translations and of accessibility: headings, links, images, tables, numbers."""
import functools
import json
import re
from collections import Counter
from typing import NamedTuple

from markdown_it import MarkdownIt

from autograde import build
from autograde.chapter import LANGUAGES, load_chapters
from autograde.paths import COURSE, ROOT

_PARSER = MarkdownIt("commonmark").enable("table")
_CHINESE = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
# Number words that say a count; "one", "two", "both" and their Chinese forms are too often no numbers.
_WORDS = {"三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9, "十": 10, "three": 3, "third": 3, "four": 4,
          "fourth": 4, "quarter": 4, "five": 5, "fifth": 5, "six": 6, "seven": 7, "eight": 8, "eightfold": 8,
          "nine": 9, "ten": 10, "tenfold": 10}
_COUNTED = re.compile(r"[三四五六七八九十](?=[个条项步种类份次档倍段行列台张位章层路句点分成])")


class Link(NamedTuple):
    text: str
    target: str


class Page:
    """A text in Markdown, taken apart."""

    def __init__(self, text):
        self.blocks = _PARSER.parse(text)
        self.tokens = [token for block in self.blocks for token in (block, *(block.children or ()))]
        self.images = [Link(token.content, token.attrs["src"]) for token in self.tokens if token.type == "image"]
        self.links = [link for block in self.blocks for link in _links(block.children or ())]
        self.html = [token.content for token in self.tokens if token.type.startswith("html")]

    @property
    def shape(self):
        """Every block's kind and depth in order: headings with levels, list items, rows and cells of tables."""
        return [(block.type, block.tag, block.level) for block in self.blocks]

    @property
    def headings(self):
        """(level, text) of every heading."""
        pairs = zip(self.blocks, self.blocks[1:])
        return [(int(one.tag[1]), text.content) for one, text in pairs if one.type == "heading_open"]

    @property
    def tables(self):
        """The texts of the header cells of every table."""
        tables = []
        for one, text in zip(self.blocks, self.blocks[1:]):
            if one.type == "table_open":
                tables.append([])
            elif one.type == "th_open":
                tables[-1].append(text.content)
        return tables

    @property
    def code(self):
        """Code spans and fences, counted."""
        return Counter(token.content for token in self.tokens if token.type in ("code_inline", "fence"))

    @property
    def prose(self):
        """The text outside code, in one string; alternative texts of images are part of it."""
        return "\n".join(token.content for token in self.tokens if token.type in ("text", "image"))

    @property
    def digits(self):
        """Numbers written in digits, in prose and code, counted: 1,000 is 1000, ３ is 3."""
        text = "\n".join([self.prose, *self.code.elements()])
        found = re.findall(r"\d+(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?", text)
        return Counter("".join(str(int(c)) if c.isdigit() else c for c in number if c != ",") for number in found)

    @property
    def counts(self):
        """Numbers from three up that the prose says, in digits or in words."""
        words = [*_COUNTED.findall(self.prose), *re.findall(r"[a-z]+", self.prose.lower())]
        said = {_WORDS[word] for word in words if word in _WORDS}
        return said | {int(number) for number in self.digits if number.isdigit() and int(number) > 2}


def is_chinese(text):
    return bool(_CHINESE.search(text))


@functools.cache
def pages(chapter_name, language, solved):
    """Pages of the Markdown cells of a notebook, and the code cells as (id, source), in order."""
    if solved:
        chapter = next(chapter for chapter in load_chapters() if chapter.name == chapter_name)
        notebook = json.loads(build.text(build.solved_notebook(chapter, language)))
    else:
        path = COURSE / language / chapter_name / f"{chapter_name}.ipynb"
        notebook = json.loads(path.read_text(encoding="utf-8"))
    texts = [(cell, "".join(cell["source"])) for cell in notebook["cells"]]
    return [Page(text) if cell["cell_type"] == "markdown" else (cell["id"], text) for cell, text in texts]


@functools.cache
def readme():
    """{language: Page of its half} and under "" the Page of all of README.md."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    halves = re.fullmatch(r".*?^## 中文\n(.*?)^## English\n(.*?)^## (?:Licences|许可).*", text, re.M | re.S)
    return {"": Page(text)} | {language: Page(half) for language, half in zip(LANGUAGES, halves.groups())}


def _links(tokens):
    """The Links of a paragraph; an image in a link speaks through its alternative text."""
    texts, target = [], None
    for token in tokens:
        if token.type == "link_open":
            texts, target = [], token.attrs["href"]
        elif token.type == "link_close":
            yield Link("".join(texts), target)
        elif target is not None:
            texts.append(token.content)
