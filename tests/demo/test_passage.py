"""Splitting: sizes, headings, lists, tables, code, overlap, line numbers, hostile text."""

from __future__ import annotations

import itertools

import pytest

from teal.demo.passage import SIZE, Passage, printable, split, weight


def passages(text: str) -> list[Passage]:
    return list(split(text, "t"))


def test_nothing_comes_of_nothing() -> None:
    assert passages("") == []
    assert passages("\n\n---\n***\n | \n") == []


def test_keeps_the_line_and_the_trail_of_headings() -> None:
    found = passages("# A\n\nfirst\n\n## B\n\nsecond\n\n# C\nthird\n")
    assert [(one.line, one.heading, one.text) for one in found] == [
        (3, "A", "first"), (7, "A > B", "second"), (10, "C", "third"),
    ]  # fmt: skip
    assert found[1].embedded == "A > B: second"


def test_underlined_headings() -> None:
    found = passages("Title\n=====\n\none\n\nPart\n----\ntwo\n")
    assert [(one.heading, one.text) for one in found] == [("Title", "one"), ("Title > Part", "two")]


def test_a_rule_is_not_a_heading() -> None:
    assert [one.text for one in passages("one\ntwo\n---\nthree\n")] == ["one two\nthree"]


def test_lines_are_counted_as_editors_do() -> None:
    assert passages("a\r\n\r\n\fb\u2028c\r\n\r\n# H\r\nlast")[-1].line == 6


def test_short_paragraphs_are_joined_and_long_ones_are_not() -> None:
    long = "Many words stand here in one long row of them. " * 4
    assert len(passages("one\n\ntwo\n\nthree")) == 1
    assert len(passages(f"{long}\n\n{long}")) == 2


def test_no_passage_is_much_larger_than_its_size() -> None:
    prose = "This is a sentence of ten words, as it seems. " * 200
    for text in (prose, "x" * 50_000, "word " * 20_000, "- item\n" * 2000, "| a | b |\n" * 2000, "漢字" * 5000):
        found = passages(text)
        assert len(found) > 5
        assert max(weight(one.text) for one in found) <= SIZE * 1.1


def test_a_paragraph_cut_in_two_repeats_its_last_short_sentence() -> None:
    sentences = [f"Sentence number {number} says something of its own." for number in range(40)]
    found = passages(" ".join(sentences))
    assert all(later.text.split(". ")[0] in earlier.text for earlier, later in itertools.pairwise(found))
    assert all(any(sentence in one.text for one in found) for sentence in sentences)


def test_overlap_does_not_cross_headings() -> None:
    one, two = passages("# A\nShort sentence.\n# B\nOther.\n")
    assert (one.text, two.text) == ("Short sentence.", "Other.")


def test_an_item_of_a_list_stays_whole() -> None:
    items = [f"- item {number} has a first line\n  and a second one. And a second sentence." for number in range(30)]
    whole = [one.replace("\n  ", " ") for one in items]
    found = [line for one in passages("\n".join(items)) for line in one.text.split("\n")]
    assert found == whole


def test_tables_and_code_keep_their_lines() -> None:
    found = passages("| a | b |\n|---|---|\n| c | d |\n\n```python\nx = 1\n# no heading\n```\n\nend\n")
    assert found[0].text == "| a | b |\n| c | d |\nx = 1\n# no heading\nend"


def test_an_unclosed_fence_ends_with_the_text() -> None:
    assert [one.text for one in passages("```\n# a\nb")] == ["# a\nb"]


@pytest.mark.parametrize("hostile", ["\x1b[31mred\x1b[0m", "a\x07b", "a\u202eb", "\x9b2J", "a\x7fb"])
def test_nothing_reaches_a_terminal_that_obeys_it(hostile: str) -> None:
    shown = passages(f"word {hostile}")[0].text
    assert not any(character < " " or "\x7f" <= character < "\xa0" or character == "\u202e" for character in shown)


def test_lone_surrogates_can_be_encoded() -> None:
    assert printable("a\udce4b").encode() == b"a?b"


def test_is_made_as_it_is_asked_for() -> None:
    few = itertools.islice(split("Line of words.\n\n" * 10 + "# H\n" * 1_000_000, "t"), 1)
    assert next(few).line == 1
