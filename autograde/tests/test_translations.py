"""Chinese and English say the same: cell by cell the same structure, links, pictures, code and numbers."""
import re

import pytest
from prose import Page, is_chinese, pages, readme

from autograde.chapter import load_chapters

TWINS = [
    pytest.param(chapter.name, solved, id=f"{chapter.name[:3]}-{'solved' if solved else 'learner'}")
    for chapter in load_chapters()
    for solved in (False, True)
]
twins = pytest.mark.parametrize(("name", "solved"), TWINS)


def both(name, solved):
    """(place, zh Page, en Page) of every Markdown cell."""
    zh, en = pages(name, "zh", solved), pages(name, "en", solved)
    assert len(zh) == len(en)
    return [(f"cell {number}: {one.prose[:40]!r}", one, other) for number, (one, other) in enumerate(zip(zh, en))
            if isinstance(one, Page) and isinstance(other, Page)]


def no_language(target):
    """A link's target without the part that differs by language: our folders, Creative Commons' translated deed."""
    return re.sub(r"(?<=/by/4\.0/)deed\.\S+", "", re.sub(r"/(zh|en)/", "/LANGUAGE/", target))


@twins
def test_the_same_cells_in_the_same_order_and_the_very_same_code(name, solved):
    zh, en = pages(name, "zh", solved), pages(name, "en", solved)
    assert [isinstance(cell, Page) for cell in zh] == [isinstance(cell, Page) for cell in en]
    code = [[cell for cell in cells if not isinstance(cell, Page)] for cells in (zh, en)]
    assert len(code[0]) > 20 and code[0] == code[1]


@twins
def test_the_same_headings_lists_and_tables(name, solved):
    for place, zh, en in both(name, solved):
        assert zh.shape == en.shape, place


@twins
def test_the_same_links_images_and_html(name, solved):
    for place, zh, en in both(name, solved):
        links = [sorted(no_language(link.target) for link in page.links) for page in (zh, en)]
        assert links[0] == links[1], place
        assert [image.target for image in zh.images] == [image.target for image in en.images], place
        assert zh.html == en.html, place


@twins
def test_the_same_code_in_prose(name, solved):
    for place, zh, en in both(name, solved):
        own = [sorted((page.code - twin.code).elements()) for page, twin in ((zh, en), (en, zh))]
        assert all(map(is_chinese, own[0])), (place, own)
        # What is translated has as many pieces, of as many lines.
        lines = [sorted(piece.count("\n") for piece in pieces) for pieces in own]
        assert lines[0] == lines[1], (place, own)


@twins
def test_every_number_in_digits_is_in_the_twin(name, solved):
    for place, zh, en in both(name, solved):
        assert zh.digits == en.digits, (place, zh.digits - en.digits, en.digits - zh.digits)


@twins
def test_every_number_from_three_up_is_said_in_both(name, solved):
    for place, zh, en in both(name, solved):
        assert zh.counts == en.counts, (place, zh.counts ^ en.counts)


def test_numbers_are_read_as_a_reader_reads_them():
    assert Page("3,274 个请求，０.5 秒，10^9，`x[2]`").digits == {"3274": 1, "0.5": 1, "10": 1, "9": 1, "2": 1}
    assert Page("1, 2, 300 and 4,000").digits == {"1": 1, "2": 1, "300": 1, "4000": 1}
    assert Page("第三种，三分之一，百分之几，五脏俱全").counts == {3} == Page("a third").counts
    assert Page("四个池").counts == {4} == Page("4 pools").counts


# ---- README

def commands(page):
    """What a reader may type: lines of fences without remarks, and code spans that begin with a program."""
    lines = [re.sub(r"\s+#.*", "", line) for piece in page.code for line in piece.split("\n")]
    return {re.sub(r"(\w+=)?\S*[\u4e00-\u9fff]\S*|my_\w+|FOLDER|[A-Z]+=my_\w+", "NAME", line) for line in lines
            if re.match(r"make \w|\.venv/|conda |pip |python|sudo ", line)}


def test_the_halves_of_the_readme_name_the_same_commands_links_and_sections():
    zh, en = readme()["zh"], readme()["en"]
    assert commands(zh) == commands(en) and len(commands(zh)) >= 6
    assert [link.target for link in zh.links] == [link.target for link in en.links]
    assert [level for level, _ in zh.headings] == [level for level, _ in en.headings]
    assert len(zh.headings) >= 4
