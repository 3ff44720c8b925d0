"""Read the output of a program: its lines as a person sees them, and their numbers and words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import dropwhile, pairwise
from typing import NamedTuple

#: The bytes at the beginning and at the end of a long line that are kept.
LONGEST = 4096
_ENDS = re.compile(rb"[\r\n]+")
_PART_OF_CHARACTER = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,2}\Z")
#: Control sequences of a terminal, such as colours, titles, character sets and moves (ECMA-48 and
#: ECMA-35), and other characters that are no text.
_CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)?|\x1b[ -/]*[0-~]"
    r"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f\ufeff]"
)
#: A number, or a word for a number that is not finite. After a name or a number, - and + are no
#: signs.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w.)\]])[+\-\u2212])?(?:"
    r"(?P<word>(?<![\w.])(?i:nan|inf(?:inity)?)(?!\w))"
    r"|(?P<digits>\.?\d(?:[\d.,]*\d)?\.?)(?P<exponent>(?:[eE][+\-]?|[dD][+\-])\d+)?)"
)
_PLAIN = re.compile(r"\d+\.?\d*|\.\d+")
_DECIMAL_COMMA = re.compile(r"(?:\d+|[1-9]\d{0,2}(?:\.\d{3})+),\d+")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
#: After digits: a unit that multiplies the number, or a character that makes it another number.
_SCALE = re.compile(r"[kKMGTB]|[_'’\u00a0\u202f]\d|(?<=(?<![\d.])0)[xX]|#(?:QNAN|SNAN|IND|INF)")
_AFTER_HOURS = re.compile(r"\d:")
_IN_A_NAME = re.compile(r"[^\W\d]")
_ZERO_FIRST = re.compile(r",0\d")
_MINUS = "\u2212"
#: Numbers that replace a word such as nan, if a pattern matches numbers only.
_IN_PLACE_OF_WORDS = ("0.0000", "0", *(f"0.{'0' * places}" for places in (1, 2, 3, 5, 6, 7, 8)))
#: The meanings of a comma in a number; `_NO_COMMA` for a number without a comma.
_NO_COMMA, _DECIMAL, _GROUPS, _SEPARATOR = "", "decimal", "groups", "separator"


def text(data: bytes) -> str:
    """Return printed bytes as text, without colours and without overwritten letters.

    A line that is not in UTF-8 is read as Latin-1.
    """
    lines = []
    for line in data.split(b"\n"):
        try:
            decoded = line.decode()
        except UnicodeDecodeError:
            decoded = line.decode("latin-1")
        # A backspace moves one letter back. The text after it overwrites letters.
        first, *others = _CONTROL.sub("", decoded).rstrip("\x08").split("\x08")
        letters, place = list(first), len(first)
        for overwriting in others:
            place = max(place - 1, 0)
            letters[place : place + len(overwriting)] = overwriting
            place += len(overwriting)
        lines.append("".join(letters))
    return "\n".join(lines)


#: A line that names an error: a message on options, the last line of a Python traceback (perhaps
#: after the number of a rank), a line of a log, or a fatal line of glog, such as XLA's.
ERROR = re.compile(
    r"^(\[\w+\]: ?)?[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)(: .*)?$"
    r"|(?i:^(\S+: )?(fatal )?error: )|\b(ERROR|FATAL|CRITICAL)\b|^F\d{4} [\d:.]+ "
)
TRACEBACK = "Traceback (most recent call last)"
#: The line before the traceback of an ignored error: Python, `logging` and `asyncio` go on after
#: it.
_GOES_ON = re.compile(
    "Exception ignored |Exception in thread |Error in atexit|--- Logging error|^(future|task): <"
)
#: The most lines after the error that ends a program: a message, and lines of other ranks.
_MOST_AFTER = 20
_CHAINED = re.compile("^(During handling of|The above exception was)")


def lines_with_words(text: str) -> list[str]:
    """Return the lines of a text with a letter or a digit. Other lines are only decoration."""
    return [line for line in text.splitlines() if re.search(r"[^\W_]", line)]


def has_failed(last: str) -> bool:
    """Return whether the last lines of a program have the traceback of an error that ended it.

    A program that printed many lines after a traceback has gone on.
    """
    lines, goes_on, failed = lines_with_words(last), False, None
    for number, (before, line) in enumerate(pairwise(["", *lines])):
        if TRACEBACK in line:
            goes_on = bool(_GOES_ON.search(before) or (goes_on and _CHAINED.search(before)))
            failed = failed if goes_on else number
    if failed is None:
        return False
    frame = lines[failed].partition(TRACEBACK)[0] + " "  # the prefix of lines of this rank
    after = dropwhile(lambda line: line.startswith(frame), lines[failed + 1 :])
    return len(list(after)) <= _MOST_AFTER


class Lines:
    """The lines of an output that arrives in pieces.

    A line ends with a newline or a carriage return. A progress bar writes the carriage return only
    before its next line, so the time of a line is the time of its last character.

    Attributes
    ----------
    cut : the number of lines that were too long and were cut.
    """

    def __init__(self) -> None:
        self.cut = 0
        self._rest, self._time, self._is_cut = bytearray(), 0.0, False

    def feed(self, data: bytes, time: float) -> Iterator[tuple[str, float]]:
        """Yield each line that ends in the bytes that arrived at a time, with its time."""
        first, *others = _ENDS.split(data)
        if first or not self._rest:
            self._time = time
        self._keep(first)
        for other in others:
            yield self._take_line(), self._time
            self._time = time
            self._keep(other)

    def end(self) -> Iterator[tuple[str, float]]:
        """Yield the last line, which may have no end."""
        if self._rest:
            yield self._take_line(), self._time

    def _keep(self, data: bytes) -> None:
        self._rest += data
        if len(self._rest) > 4 * LONGEST:
            self._cut()

    def _cut(self) -> None:
        # With a part of a character, the whole line would not be in UTF-8.
        first = _PART_OF_CHARACTER.sub(b"", self._rest[:LONGEST])
        last = self._rest[-LONGEST:].lstrip(bytes(range(0x80, 0xC0)))
        self._rest, self._is_cut = bytearray(first + b"\n" + last), True

    def _take_line(self) -> str:
        if len(self._rest) > 2 * LONGEST + 1:
            self._cut()
        self.cut += self._is_cut
        line = text(bytes(self._rest))
        self._rest, self._is_cut = bytearray(), False
        return line


class Number(NamedTuple):
    """The text of a named group of a match, and its value by each meaning of a comma.

    Without values the text is no number, or several numbers.
    """

    text: str
    values: Mapping[str, float]


class _Token(NamedTuple):
    """A number in a line, from `start` to `end`. `is_listed`: it stands in a list with commas."""

    start: int
    end: int
    sign: str
    word: str
    digits: str
    exponent: str
    is_listed: bool = False

    @property
    def text(self) -> str:
        return f"{self.sign}{self.word}{self.digits}{self.exponent}"

    def plain_text(self, level: int, word: str) -> str:
        """Return the text of the number; `word` replaces a word such as nan.

        The text has no sign from level 1 on, no exponent from level 2 on, and no commas at level 3.
        """
        if self.word:
            return word
        digits = self.digits
        if level > 2 and _DECIMAL_COMMA.fullmatch(digits):
            digits = digits.replace(".", "").replace(",", ".")
        elif level > 2 and _GROUPED.fullmatch(digits):
            digits = digits.replace(",", "")
        return f"{self.sign if level < 1 else ''}{digits}{self.exponent if level < 2 else ''}"

    def value(self, digits: str, signed: bool = True, raised: bool = True) -> float:
        """Return the value of digits, with or without the sign and the exponent."""
        sign = self.sign.replace(_MINUS, "-") if signed else ""
        return float(sign + digits + (re.sub("[dD]", "e", self.exponent) if raised else ""))


def search(pattern: re.Pattern, line: str) -> tuple[str, dict[str, Number]] | None:
    """Return the match of a pattern in a line, and the numbers of its named groups; or None.

    The whole number is read, even if a group matches only a part of it. A pattern may match only
    digits and a point, such as `[0-9.]+`. If the pattern does not match, or skips a word such as
    nan, it is also searched in the line with plain numbers.
    """
    match = pattern.search(line)
    if not pattern.groupindex:
        return match and (match[0], {})
    tokens = list(_tokens(line))
    if match is None or any(
        # The pattern skips a word that no group covers.
        token.word
        and match.start() <= token.start < token.end <= match.end()
        and not any(_covers(match, name, token) for name in pattern.groupindex)
        for token in tokens
    ):
        before = line
        for level in range(1 if match else 4):
            for plain, moved, changed in _plain_forms(line, tokens, level):
                other = pattern.search(plain) if plain != before else None
                if other and any(_covers(other, n, t) for n in pattern.groupindex for t in changed):
                    return other[0], _numbers(other, plain, moved)
                before = plain
    return match and (match[0], _numbers(match, line, tokens))


def _tokens(line: str) -> Iterator[_Token]:
    for match in _NUMBER.finditer(line):
        sign, word, digits, exponent = match.groups("")
        start, end, plain = *match.span(), digits.rstrip(".")
        if "," not in plain or _DECIMAL_COMMA.fullmatch(plain) or _GROUPED.fullmatch(plain):
            yield _Token(start, end, sign, word, digits, exponent)
            continue
        *others, last = digits.split(",")
        for part in others:
            length = len(sign) + len(part)
            yield _Token(start, start + length, sign, "", part, "", True)
            sign, start = "", start + length + 1
        yield _Token(start, end, sign, "", last, exponent, True)


def _covers(match: re.Match, name: str, token: _Token) -> bool:
    start, end = match.span(name)
    return start < token.end and token.start < end


def _plain_forms(
    line: str, tokens: Sequence[_Token], level: int
) -> Iterator[tuple[str, list[_Token], list[_Token]]]:
    """Yield a line with plain numbers, the tokens of this line, and the changed tokens."""
    has_word = any(token.word for token in tokens)
    for word in _IN_PLACE_OF_WORDS if has_word else ("",):
        plain, moved, changed, at = "", [], [], 0
        for token in tokens:
            # The comma in a time of day, as `logging` prints it, is no part of another number.
            is_time = _AFTER_HOURS.match(line, max(0, token.start - 2))
            written = token.plain_text(min(level, 2) if is_time else level, word)
            plain += line[at : token.start]
            moved.append(token._replace(start=len(plain), end=len(plain) + len(written)))
            if written != line[token.start : token.end]:
                changed.append(moved[-1])
            plain += written
            at = token.end
        yield plain + line[at:], moved, changed


def _numbers(match: re.Match, line: str, tokens: Sequence[_Token]) -> dict[str, Number]:
    return {
        name: _number(match, name, line, tokens)
        for name, part in match.groupdict().items()
        if part and part.strip()
    }


def _number(match: re.Match, name: str, line: str, tokens: Sequence[_Token]) -> Number:
    """Return the whole number that a group covers at least in part."""
    start, end = match.span(name)
    covered = [
        token
        for token in tokens
        if _covers(match, name, token)
        and (token.start <= start or not _IN_A_NAME.match(line, token.start - 1))
    ]
    unread = Number(match[name].strip(), {})
    if len(covered) != 1:
        return unread
    [token] = covered
    # If the pattern itself matches the unit, the user wants the number before the unit.
    is_scaled = _SCALE.match(line, token.end)
    if is_scaled and (end > token.end or match.end() <= token.end):
        return Number(line[token.start : max(end, token.end + 4)].strip(), {})
    if token.word:
        return Number(token.text, {_NO_COMMA: token.value(token.word)})
    # A token that was rewritten is read as a whole.
    is_as_written = line[token.start : token.end] == token.text
    first, last = 0, len(token.digits)
    if is_as_written:
        place = token.start + len(token.sign)
        first = min(max(start - place, 0), last)
        last = min(max(end - place, first), last)
    before, part, after = token.digits[:first], token.digits[first:last], token.digits[last:]
    is_part = bool(before or after) and bool(_PLAIN.fullmatch(part))
    is_divided = is_part and any(
        token.start < edge < token.end
        for other in match.groupdict()
        if other != name
        for edge in match.span(other)
    )
    values = {}
    if is_divided:
        values[_NO_COMMA] = token.value(part, not before, not after)
    elif _PLAIN.fullmatch(token.digits):
        values[_SEPARATOR if token.is_listed else _NO_COMMA] = token.value(token.digits)
    elif "," in token.digits:
        digits = token.digits.rstrip(".")
        if _DECIMAL_COMMA.fullmatch(digits):
            values[_DECIMAL] = token.value(digits.replace(".", "").replace(",", "."))
        if _GROUPED.fullmatch(digits):
            values[_GROUPS] = token.value(digits.replace(",", ""))
        is_alone = before[-1:] in ("", ",") and after[:1] in ("", ",")
        if is_part and is_alone and not _ZERO_FIRST.match(after):
            values[_SEPARATOR] = token.value(part, not before, not after)
    return Number(token.text, values)


class Numbers:
    """The values of numbers, line by line. The numbers of a name tell the meaning of a comma.

    A number with several possible values is left out, and so is a text that is no number. `counts`
    are names of whole numbers.
    """

    def __init__(self, counts: Collection[str]):
        self._counts = counts
        self._meanings: dict[str, set[str]] = {}
        self._open: list[tuple[dict[str, float], str, Number]] = []
        self._left_out: dict[str, Number] = {}

    def values(self, numbers: Mapping[str, Number]) -> dict[str, float]:
        """Return the values of a line by name; `settle` adds values that depend on other lines."""
        read: dict[str, float] = {}
        for name, number in numbers.items():
            # A whole number has no decimals.
            ways = set(number.values) - ({_DECIMAL} if name in self._counts else set())
            if not ways:
                self._left_out.setdefault(name, number)
            elif len(ways) == 1:
                [read[name]] = (number.values[way] for way in ways)
            else:
                self._open.append((read, name, number))
            if ways == {_NO_COMMA}:
                # A program that writes a point before decimals does not write a comma there.
                ways = {_GROUPS, _SEPARATOR} if "." in number.text else set()
            if ways:
                self._meanings[name] = self._meanings.get(name, ways) & ways
        return read

    def settle(self) -> list[str]:
        """Add the values that are known now, and return notes on numbers that are left out."""
        for read, name, number in self._open:
            ways = self._meanings[name] & number.values.keys()
            # If all numbers have groups of three digits, the groups are no accident.
            if ways == {_GROUPS, _SEPARATOR}:
                ways = {_GROUPS}
            if len(ways) == 1:
                [read[name]] = (number.values[way] for way in ways)
            else:
                self._left_out.setdefault(name, number)
        self._open = []
        notes = []
        for name, number in self._left_out.items():
            why = "is no number"
            if number.values:
                why = "may be read in several ways (print it with a point, and without a comma)"
            notes.append(f"{name} {number.text[:80]!r} {why}, and is left out")
        return notes


#: After the word for an epoch or a step, its number: whole, and without a unit.
_AND_NUMBER = (
    r"[\W_]{0,4}(?:no\W{1,2})?(\d{1,3}(?:,\d{3})+|\d+)(?![.,]?\d|[kmg]\b|e\d)"
    r"(?!\s*((m?s|secs?|seconds?|mins?|h)\b|%))"
)
#: Before the word for an epoch or a step: no word for the best epoch or for all epochs.
_NOT_OF_OTHERS = "".join(rf"(?<!{word}[ _-])" for word in ("best", "max", "num", "total", "last"))
#: The number of an epoch. Printed dictionaries, such as those of Transformers, hold fractions of an
#: epoch.
_EPOCH = re.compile(
    rf"(?i)['\"]epoch['\"]: ?(?P<part>\d+\.\d+)|{_NOT_OF_OTHERS}(?<![a-z0-9])epoch{_AND_NUMBER}"
)
_STEP = re.compile(
    rf"(?i){_NOT_OF_OTHERS}(?<![a-z0-9])(?:step|iter|iteration|it|batch|update){_AND_NUMBER}"
)
#: An epoch and a step, as PyTorch's first tutorial prints them: `[1,  2000] loss: 2.2`.
_STEP_OF_EPOCH = re.compile(r"\s*\[\d+,\s+(\d+)\]")
#: The number of an epoch and the number of all epochs, such as 3/10. They are no progress bar.
_PART_OF_EPOCHS = re.compile(r"(?i)(?<![a-z0-9])epoch[\W_]{0,4}\d+(\s*/\s*\d+)?")
#: The progress in a bar: `3/10 [00:01<00:03`, `3/10 ━━━`, `3/10 |██`, `[ 3/10]`, `[64/60000 (1%)]`.
_BAR = re.compile(
    r"(?<![\d/.:-])(\d+)\s*/\s*\d+(?=\s*[\[|━╸])|\[\s*(\d+)\s*/\s*\d+(?=\]|\s+\(\d+%\)\])"
)
#: A number and the number of all: 3/10. It is no date and no path.
_PARTS = re.compile(r"(?<![\w./])(\d+)\s*/\s*(\d+)(?![\w/]|\.\d)")
#: Words in the name of a score whose lower, or whose higher, values are better.
_LOWER = re.compile(
    r"loss|error|cost|perplexity|\b(err|ppl|r?mse|mae|mape|nll|[wc]er|fid|deviance)\b"
)
_HIGHER = re.compile(
    r"accura|precision|recall|correct|reward|score|\b(acc\w{0,2}|top ?\d|f1|auc|auroc|m?ap|bleu"
    r"|rouge|m?iou|dice|mcc|kappa|r2|psnr|ssim|ndcg|mrr|sensitivity|specificity)\b"
)
#: Words in the name of a number that is a time, a speed or a count, and no score.
_MEASURE = re.compile(
    r"\b(times?|seconds?|secs?|m?s|us|ns|minutes?|hours?|duration|elapsed|eta|took|per|throughput"
    r"|speed|lr|learning rate|steps?|iters?|iterations?|it|batch|batches|epochs?|rows?|ranks?|n|num"
    r"|counts?|samples|examples|images|tokens|memory|mem|[mg]i?b|left|parameters)\b"
)
#: Words in the name of a duration or a speed. Such a number is known only after its epoch or step
#: has ended.
_LENGTH = re.compile(r"\b(seconds?|secs?|m?s|minutes?|duration|took|per|speed|throughput)\b")
#: Words in the name of a duration that is not the duration of an epoch.
_OF_A_PART = re.compile(r"\b(per|steps?|iters?|iterations?|it|batch|eval\w*|val\w*|test\w*|left)\b")


class Counters(NamedTuple):
    """The position of a line in a training; None for a number that the line does not tell.

    `epoch` and `step` are the numbers after these words. `bar` is the number of steps or rows
    that a progress bar counts as done, such as 3 in `[3/10]`.
    """

    epoch: float | None
    step: float | None
    bar: float | None


def read_counters(line: str) -> Counters:
    """Return the position in a training that a line tells."""
    without_epochs = _PART_OF_EPOCHS.sub("", line)
    matches = (
        _EPOCH.search(line),
        _STEP_OF_EPOCH.match(line) or _STEP.search(without_epochs),
        _BAR.search(without_epochs),
    )
    texts = (match and next(filter(None, match.groups())) for match in matches)
    return Counters(*(float(text.replace(",", "")) if text else None for text in texts))


def read_total(line: str, number: float, epoch: bool) -> float | None:
    """Return the number of all epochs, or of all steps, beside the number of one: 3/10."""
    text = line if epoch else _PART_OF_EPOCHS.sub("", line)
    totals = (float(all) for one, all in _PARTS.findall(text) if float(one) == number)
    return next((total for total in totals if total >= max(1, number)), None)


def is_score(name: str) -> bool:
    """Return whether a number of this name is a score, and not a time, speed or count."""
    words = _words(name)
    return bool(_LOWER.search(words) or _HIGHER.search(words) or not _MEASURE.search(words))


def is_length(name: str) -> bool:
    """Return whether a number of this name is a duration or a speed."""
    return bool(_LENGTH.search(_words(name)))


def is_seconds(name: str) -> bool:
    """Return whether a number of this name is the seconds of an epoch, and not of a part of it."""
    words = _words(name)
    return bool(re.search(r"\b(seconds?|secs?)\b", words) and not _OF_A_PART.search(words))


def better(name: str) -> bool | None:
    """Return whether higher values of a score are better; None if unknown."""
    words = _words(name)
    return False if _LOWER.search(words) else bool(_HIGHER.search(words)) or None


def _words(name: str) -> str:
    """Return the words of a name such as `valLoss` or `val_loss`: `val loss`."""
    return re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)).lower()
