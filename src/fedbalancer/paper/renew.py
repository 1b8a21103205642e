"""An item shown anew from the tables in its folder: nothing is measured."""

from __future__ import annotations

from pathlib import Path

from fedbalancer.errors import RunFolderError
from fedbalancer.paper.index import README, write_index
from fedbalancer.paper.registry import ITEMS, item
from fedbalancer.paper.write import DOCUMENT, Written, read_document, renew


def renew_folder(folder: Path) -> Written:
    """The page, the text and the drawings of an item, and the index that it stands in, where there is one: after a
    change of its why.md, or with a newer version of this package."""
    name = str(read_document(folder).get("item"))
    if name not in ITEMS:
        raise RunFolderError(f"{folder / DOCUMENT} is of no item of the paper: item = {name!r}")
    written = renew(item(name), folder)
    if (folder.parent / README).is_file():
        write_index(folder.parent)
    return written
