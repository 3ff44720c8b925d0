"""Requests to NCBI's E-utilities through Bio.Entrez, with retries.

Bio.Entrez builds the requests and keeps NCBI's rate: at most one request every 0.37 s, or every 0.1
s with an API key. Its own retries would follow at once, so they are switched off. Every retry here
is a new request through Bio.Entrez, and so keeps the rate.

Environment
-----------
NCBI_API_KEY : the API key, read at each request and never shown.
ESCALA_EUTILS_URL : address of a mirror or a test, used in place of https://eutils.ncbi.nlm.nih.gov.
    It receives the key. NCBI's rate is not kept there.
ESCALA_EUTILS_WAIT : seconds of the first wait before a retry, 1 by default; not for NCBI.
"""

from __future__ import annotations

import email.utils
import fcntl
import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote_plus, urlsplit
from urllib.request import Request, urlopen

from Bio import Entrez
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt
from tenacity import wait_exponential_jitter as exponential

from escala.core.errors import InputError

NCBI = "https://eutils.ncbi.nlm.nih.gov"
KEY, ADDRESS, FIRST_WAIT = "NCBI_API_KEY", "ESCALA_EUTILS_URL", "ESCALA_EUTILS_WAIT"
#: Maximum failed tries in a row, longest wait between two, and longest wait that NCBI may ask for;
#: waits in seconds.
TRIES, LONGEST_WAIT, LONGEST_RETRY_AFTER = 8, 60, 600
#: A request fails after so many seconds without a byte.
TIMEOUT_SECONDS = 60
BACKEND = re.compile(r"backend|temporarily|try again", re.I)
TOO_MANY = re.compile(r"rate limit", re.I)
EXPIRED = re.compile(r"unable to obtain query|webenv|query_key|history", re.I)
#: NCBI's answers for identifiers that it does not know, and sometimes for known ones.
NO_SUCH = re.compile(r"id list is empty|id.parameter.is.empty|failed to understand id", re.I)
BAD_KEY = re.compile(r"api.key.{0,20}invalid|invalid.{0,20}api.key", re.I | re.S)

T = TypeVar("T")


class Failure(Exception):
    """A failed request with its reason. The text never holds the key."""


class Final(Failure):
    """A failure that a retry would not cure."""


class Passing(Failure):
    """A failure that a retry may cure; `wait` is the number of seconds that the server asks for."""

    def __init__(self, reason: str, wait: float = 0):
        self.wait = wait
        super().__init__(reason)


class Cut(Passing):
    """An answer that ended too early; `text` is the part that arrived."""

    def __init__(self, text: str):
        self.text = text
        super().__init__("the answer was cut")


class Unknown(Failure):
    """An answer that NCBI has none of the requested records."""


class Client:
    """One user's requests.

    Parameters
    ----------
    address : e-mail address, which every request carries.

    Attributes
    ----------
    faults : how often each fault occurred that led to a retry.
    """

    def __init__(self, address: str):
        self.email = address
        self.faults: Counter[str] = Counter()
        self._server = (os.environ.get(ADDRESS) or NCBI).rstrip("/")
        host = urlsplit(self._server).hostname or ""
        self._is_ncbi = host == "nih.gov" or host.endswith(".nih.gov")
        first = 1.0 if self._is_ncbi else _first_wait()
        self._backing_off = exponential(multiplier=first, max=LONGEST_WAIT, jitter=first)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock of this user's requests on this machine, which share NCBI's rate.

        A mirror needs no lock.
        """
        if not self._is_ncbi:
            yield
            return
        handle = os.open(_own_folder() / "ncbi.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("waiting for another download from NCBI to end", file=sys.stderr, flush=True)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def ask(self, utility: Callable[..., Any], **parameters: Any) -> str:
        """Return the answer to one request through a function of Bio.Entrez, without retries.

        Raises
        ------
        Failure : its class tells whether a retry may help; `Cut` holds the part that arrived.
        """
        # Raise outside of the handlers: the original exceptions hold the URL, and with it the key.
        try:
            with (
                self._configured(),
                utility(
                    db="nuccore", tool="escala", email=self.email, api_key=_key(), **parameters
                ) as reply,
            ):
                body = reply.read()
        except HTTPError as error:
            failure = _judged(error)
        except IncompleteRead as error:
            failure = Cut(_text(error.partial))
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            failure = Passing(_without_key(f"no answer: {reason or type(error).__name__}"))
        else:
            failure = None
        if failure:
            raise failure
        return _text(body)

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`; retry after each `Passing`, with growing waits.

        Raises
        ------
        Failure : the last one of `TRIES`, or the first that is not `Passing`.
        """

        def note(state: RetryCallState) -> None:
            self.faults[str(state.outcome.exception())] += 1

        def wait(state: RetryCallState) -> float:
            asked_for = min(state.outcome.exception().wait, LONGEST_RETRY_AFTER)
            return max(asked_for, self._backing_off(state))

        return Retrying(
            stop=stop_after_attempt(TRIES),
            retry=retry_if_exception_type(Passing),
            wait=wait,
            before_sleep=note,
            reraise=True,
        )(attempt)

    @contextmanager
    def _configured(self) -> Iterator[None]:
        """Patch Bio.Entrez, which has no setting for the address or the timeout."""
        before = Entrez.urlopen, Entrez.max_tries

        def opened(request: Request):
            request.full_url = request.full_url.replace(NCBI, self._server, 1)
            return urlopen(request, timeout=TIMEOUT_SECONDS)

        Entrez.urlopen, Entrez.max_tries = opened, 1
        if not self._is_ncbi:
            # Time of its last request: a mirror need not keep NCBI's rate.
            Entrez._open.previous = 0
        try:
            yield
        finally:
            Entrez.urlopen, Entrez.max_tries = before


def require_no_error(text: str) -> None:
    """Raise the failure that an answer without records reports.

    Raises
    ------
    Unknown : it says that NCBI has no such record.
    Final : it says that the key is not valid.
    Passing : anything else, also an empty answer.
    """
    if BAD_KEY.search(text):
        raise Final(f"NCBI does not accept the key in {KEY}")
    if NO_SUCH.search(text):
        raise Unknown(f"NCBI answers: {shown(text)}")
    if TOO_MANY.search(text):
        raise Passing("too many requests")
    if EXPIRED.search(text):
        raise Passing("the search has expired")
    raise Passing(f"NCBI answers: {shown(text)}" if text.strip() else "an empty answer")


def parsed(text: str) -> dict:
    """Return the content of a JSON answer.

    Raises
    ------
    Failure : it is not JSON, or holds only an error.
    """
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or "error" in content:
        require_no_error(text)
    return content


def _judged(error: HTTPError) -> Failure:
    """Return the failure that an HTTP status and its text stand for."""
    with error:
        try:
            text = _text(error.read(4000))
        except (OSError, HTTPException):
            text = ""
        if error.code in (408, 429) or error.code >= 500:
            return Passing(f"HTTP {error.code}", _retry_after(error.headers))
        if error.code != 400:
            return Final(f"NCBI answers HTTP {error.code}: {shown(text)}")
    if BAD_KEY.search(text):
        return Final(f"NCBI does not accept the key in {KEY}")
    if TOO_MANY.search(text):
        return Passing("too many requests")
    if EXPIRED.search(text):
        return Passing("the search has expired")
    if BACKEND.search(text):
        return Passing(f"NCBI answers HTTP 400: {shown(text)}")
    return Unknown(f"NCBI answers HTTP 400: {shown(text)}")


def _retry_after(headers: Message) -> float:
    """Return the seconds that a Retry-After header asks for, as a number or a date (RFC 9110).

    A date is compared with the `Date` header of the same answer, which is of the same clock.
    """
    value = headers.get("Retry-After", "0")
    try:
        return max(0.0, float(value))
    except ValueError:
        when, sent = map(email.utils.parsedate_tz, (value, headers.get("Date", "")))
        if not (when and sent):
            return 0.0
        return max(0.0, float(email.utils.mktime_tz(when) - email.utils.mktime_tz(sent)))


def _own_folder() -> Path:
    """Return a folder that only this user can write to, so that nobody else can block its lock.

    Raises
    ------
    InputError : it belongs to somebody else, or others may write to it.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "escala"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise InputError(
            "the folder of the lock for NCBI",
            str(folder),
            "is another user's, or others may write to it",
            "run chown and chmod 700 on it, or set XDG_CACHE_HOME to a folder of your own",
        )
    return folder


def _first_wait() -> float:
    value = os.environ.get(FIRST_WAIT) or "1"
    try:
        return max(0.0, float(value))
    except ValueError:
        raise InputError(FIRST_WAIT, value, "is no number", "give seconds") from None


def _key() -> str | None:
    return os.environ.get(KEY, "").strip() or None


def _text(body: str | bytes) -> str:
    return body if isinstance(body, str) else body.decode("utf-8", "replace")


def shown(text: str, limit: int = 120) -> str:
    """Return an answer as one short line, without the key that NCBI repeats in some."""
    plain = " ".join(re.sub(r"<[^>]*>", " ", _without_key(text)).split())
    return plain[:limit] or "nothing"


def _without_key(text: str) -> str:
    key = _key()
    for form in (key, quote_plus(key)) if key else ():
        text = text.replace(form, "***")
    return text
