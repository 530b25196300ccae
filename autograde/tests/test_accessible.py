"""Notebooks and README for those who listen to them: alternative texts, headings, links and tables that say what
they are. Contrast and the dark theme are tested in the browser."""
import re
from html.parser import HTMLParser

import pytest
from prose import Page, pages, readme
from test_panels import MOVES

from autograde.chapter import LANGUAGES, load_chapters

EMPTY_TEXTS = {"", "here", "link", "this", "click here", "more", "read more", "image", "picture", "这里", "点击这里",
               "链接", "点这里", "此处", "更多", "图", "图片"}
DOCUMENTS = {
    f"{chapter.name[:3]}-{language}-{'solved' if solved else 'learner'}": (chapter.name, language, solved)
    for chapter in load_chapters() for language in LANGUAGES for solved in (False, True)
}


@pytest.fixture(params=[*DOCUMENTS, "README"])
def document(request):
    """The Pages of one document."""
    if request.param == "README":
        return [readme()[""]]
    return [page for page in pages(*DOCUMENTS[request.param]) if isinstance(page, Page)]


class Images(HTMLParser):
    """The alternative texts of the images in HTML, None where there is none."""

    def __init__(self, text):
        super().__init__()
        self.texts = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.texts.append(dict(attrs).get("alt"))


def says_something(text):
    return (text or "").strip().lower() not in EMPTY_TEXTS


def test_every_image_has_a_text(document):
    texts = [image.text for page in document for image in page.images]
    texts += [text for page in document for piece in page.html for text in Images(piece).texts]
    assert len(texts) >= 2 and all(map(says_something, texts)), texts


def test_headings_nest_below_one_title(document):
    levels = [level for page in document for level, _ in page.headings]
    assert levels[0] == 1 and levels.count(1) == 1 and len(levels) > 8
    assert all(lower <= upper + 1 for upper, lower in zip(levels, levels[1:])), levels


def test_headings_say_something_and_none_twice(document):
    texts = [text for page in document for _, text in page.headings]
    assert all(map(says_something, texts)) and len(set(texts)) == len(texts)


def test_links_say_where_they_lead(document):
    links = [link for page in document for link in page.links]
    assert len(links) >= 2
    assert [link for link in links if not says_something(link.text) or link.text.startswith("http")] == []


def test_tables_have_headers(document):
    headers = [header for page in document for header in page.tables]
    assert headers and all(all(map(says_something, header)) for header in headers), headers


@pytest.mark.parametrize("name", MOVES)
def test_a_panel_s_picture_has_a_text_and_its_state_is_said_aloud(name, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, metadata=None, **_: shown.append((data, metadata)))
    make, move = MOVES[name]
    panel = make()
    before = panel.shown.en
    panel.move(**move)
    panel._ipython_display_()
    (picture, metadata), (line, _) = shown
    assert "image/png" in picture and panel.shown.en != before
    assert metadata["image/png"]["alt"] == f"{panel.title}. {panel.shown.en}"
    assert panel.shown.zh in line["text/plain"] and "role='status'" in line["text/html"]


def test_a_picture_or_link_without_a_text_is_found():
    page = Page("![](a.png) [here](b) [ ![x](c.png) ](d) <img src='e.png'>\n\n| |b|\n|-|-|\n|1|2|\n")
    assert [image.text for image in page.images] == ["", "x"]
    assert [says_something(link.text) for link in page.links] == [False, True]
    assert Images("".join(page.html)).texts == [None] and page.tables == [["", "b"]]
    assert re.match("x", page.links[1].text.strip())
