"""Tell a page's text from its menus and its code, by the blocks that it consists of."""

from __future__ import annotations

from typing import NamedTuple

from pipelines.corpus.as_markdown.parts import fenced

MENU_RUN, MENU_LINE = 5, 40  # consecutive short lines of links that make a menu
TYPED = 0.9  # share of a page in blocks whose lines are kept, above which it is a typed text


class Block(NamedTuple):
    text: str
    links: int  # characters inside links
    main: bool
    tight: bool
    pre: bool = False  # its lines are kept
    last: bool = False  # of a table that has titles, or before a term: what follows is apart


def fenced_code(blocks: list[Block]) -> list[Block]:
    """Put code between fences; a page that is mostly one such block, or hardly anything else, is a text."""
    kept = [len(block.text) for block in blocks if block.pre]
    whole = sum(len(block.text) for block in blocks)
    if kept and (max(kept) > whole / 2 or sum(kept) > TYPED * whole):
        return blocks
    return [block._replace(text=fenced(block.text), tight=False) if block.pre else block for block in blocks]


def without_menus(blocks: list[Block]) -> list[Block]:
    """Drop runs of short lines that consist of links."""
    kept: list[Block] = []
    run: list[Block] = []
    for block in blocks:
        bare = block.text.removeprefix("- ").removeprefix(": ")
        if len(bare) <= MENU_LINE and block.links >= 0.9 * len(bare.replace(" ", "")):
            run.append(block)
            continue
        kept += run if len(run) < MENU_RUN else []
        kept.append(block)
        run = []
    return kept + (run if len(run) < MENU_RUN else [])
