"""CSV tables as text: what nobody changes comes out byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from .errors import TableError, listed

# What may stand between cells, most likely first.
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
ENCODING = "utf-8"
# Marks at the start of a file that tell its encoding; in UTF-8 the mark is a character like any other.
_BYTE_ORDERS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_MARK = "\ufeff"
# Files that are no text, by their first bytes.
_OTHERS = {
    b"PK\x03\x04": "a workbook of Excel or an archive: save it as CSV",
    b"PAR1": "a Parquet file: give it a name that ends with .parquet",
    b"\x1f\x8b": "packed by gzip: give it a name that ends with .gz",
    b"\xd0\xcf\x11\xe0": "an old workbook of Excel: save it as CSV",
}
_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_QUOTED = re.compile(r'"([^"]*(?:""[^"]*)*)"(.*)', re.DOTALL)


@dataclass(frozen=True)
class TextTable:
    """
    A table of cells, each as it stands in the file, quotes included.

    :param source: The file's name in error messages.
    :param encoding: Encoding of the file.
    :param separator: The character between cells.
    :param start: All that comes before the header: a byte order mark, blank lines.
    :param header: The cells of the first line.
    :param header_end: The line end of the header, and blank lines after it.
    :param rows: The cells of all other lines that are not blank.
    :param ends: The text after each of these: its line end, and blank lines.
    """

    source: str
    encoding: str
    separator: str
    start: str
    header: list[str]
    header_end: str
    rows: list[list[str]] = field(repr=False)
    ends: list[str] = field(repr=False)

    @cached_property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [unquote(cell).strip() for cell in self.header]

    def column(self, number: int) -> list[str]:
        """The cells of a column without quotes."""
        cells = [row[number] for row in self.rows]
        return [unquote(cell) if cell.startswith('"') else cell for cell in cells]

    def changed(
        self, filled: Mapping[str, tuple[np.ndarray, Sequence[str]]], added: Mapping[str, Sequence[str]]
    ) -> TextTable:
        """
        The table with some cells replaced and columns added at its end.

        :param filled: The numbers of the filled rows and the texts of their cells, by the name of a column.
        :param added: The cells of new columns, by name.
        """
        rows = [list(row) for row in self.rows]
        for name, (numbers, cells) in filled.items():
            place = self.names.index(name)
            for number, cell in zip(numbers, cells, strict=True):
                was_quoted = rows[number][place].startswith('"')
                rows[number][place] = self._quote(cell, was_quoted)
        for row, *cells in zip(rows, *added.values(), strict=True):
            row += [self._quote(cell) if cell else cell for cell in cells]
        header = [*self.header, *(self._quote(name) for name in added)]
        return replace(self, header=header, rows=rows)

    def to_bytes(self) -> bytes:
        """The file."""
        lines = [self.start, self.separator.join(self.header), self.header_end]
        for row, end in zip(self.rows, self.ends, strict=True):
            lines += (self.separator.join(row), end)
        return "".join(lines).encode(self.encoding)

    def _quote(self, cell: str, always: bool = False) -> str:
        return '"' + cell.replace('"', '""') + '"' if always or self._special.search(cell) else cell

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """The characters that need quotes around them."""
        return re.compile(f'["\r\n{re.escape(self.separator)}]')


def parse(data: bytes, source: str, separator: str | None = None, encoding: str | None = None) -> TextTable:
    """
    Read a table, in which every line has as many cells as the header.

    :param data: The file.
    :param source: The file's name in error messages.
    :param separator: The character between cells; by default the one that the header seems to have.
    :param encoding: The encoding, by default UTF-8, or UTF-16 if a mark says so.
    """
    text, encoding = _decode(data, source, encoding)
    start = _MARK if text.startswith(_MARK) else ""
    separator = separator or _guess_separator(text[len(start) :])
    header: list[str] | None = None
    rows: list[list[str]] = []
    ends: list[str] = []
    for cells, end, line in _records(text, len(start), separator, source):
        if cells is None:  # a blank line
            if header is None:
                start += end
            else:
                ends[-1] += end
        elif header is None:
            header = cells
            ends.append(end)
        else:
            if len(cells) != len(header):
                raise TableError(_ragged(source, line, len(rows) + 1, len(cells), len(header), separator))
            rows.append(cells)
            ends.append(end)
    if header is None:
        raise TableError(f"{source} is empty: a table has a line with the names of its columns, and rows below it.")
    return TextTable(source, encoding, separator, start, header, ends[0], rows, ends[1:])


def unquote(cell: str) -> str:
    """Return the text of a cell, without the quotes around it."""
    match = _QUOTED.fullmatch(cell)
    return cell if match is None else match[1].replace('""', '"') + match[2]


def _decode(data: bytes, source: str, encoding: str | None) -> tuple[str, str]:
    for start, what in _OTHERS.items():
        if data.startswith(start):
            raise TableError(f"{source} is no CSV table, but {what}.")
    order = _BYTE_ORDERS.get(data[:2])
    name = order if order and (encoding or "").lower() in ("", "utf-16", "utf16") else encoding or ENCODING
    try:
        text = data.decode(name)
    except LookupError:
        raise TableError(f"There is no encoding {name!r}: usual ones are utf-8, utf-16, latin-1 and cp1252.") from None
    except UnicodeError as error:
        where = f" at byte {error.start + 1}" if isinstance(error, UnicodeDecodeError) else ""
        raise TableError(
            f"{source} is not written in {name}{where}: say which encoding it has, such as --encoding cp1252."
        ) from None
    if not isinstance(text, str) or "\0" in text:
        raise TableError(
            f"{source} has bytes that are zero, and so it is no CSV table in {name}: save it as CSV, or say which "
            "encoding it has, such as --encoding utf-16-le."
        )
    if text.encode(name) != data:
        raise TableError(
            f"{source} would not come back from the encoding {name} as it is: save it in UTF-8, or say --encoding."
        )
    return text, name


def _guess_separator(text: str) -> str:
    """The character that the header has most often, outside of quotes."""
    match = re.compile(r'[\r\n]*((?:"[^"]*"|[^\r\n"]|")*)').match(text)
    header = re.sub(r'"[^"]*"', "", match[1] if match else "")
    return max(SEPARATORS, key=lambda separator: header.count(separator))  # the first of several


def _records(text: str, position: int, separator: str, source: str) -> Iterator[tuple[list[str] | None, str, int]]:
    """Yield the cells of a line (None if it is blank), what ends it (all of a blank line), and the line's number."""
    other = f"[^{re.escape(separator)}\r\n]*"
    cell = re.compile(rf'("[^"]*(?:""[^"]*)*"{other}|(?!"){other})({re.escape(separator)}|\r\n|\r|\n|\Z)')
    number = 1
    while position < len(text):
        match = _LINE.match(text, position)
        assert match is not None
        line = match[1]
        if '"' not in line:
            position = match.end()
            if line.strip(" \t") or separator in line:
                yield line.split(separator), match[2], number
            else:
                yield None, match[0], number
            number += 1
            continue
        cells, first = [], position
        while True:
            match = cell.match(text, position)
            if match is None:
                raise TableError(
                    f"{source} has a quote in line {number} that is never closed: close it, or double it if it belongs "
                    "to the text of a quoted cell."
                )
            cells.append(match[1])
            position = match.end()
            if match[2] != separator:
                break
        yield cells, match[2], number
        number += len(re.findall(r"\r\n|\r|\n", text[first:position]))


def _ragged(source: str, line: int, row: int, found: int, expected: int, separator: str) -> str:
    others = listed(f"--sep {name}" for mark, name in SEPARATORS.items() if mark != separator)
    return (
        f"{source} has {found} cell{'s' if found > 1 else ''} in line {line} (row {row}), where the header has "
        f"{expected}: write a cell for each column, empty where there is none, and put quotes around cells with "
        f"{SEPARATORS.get(separator, repr(separator))} in them. If another character stands between cells, say so: "
        f"{others}."
    )
