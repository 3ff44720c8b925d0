"""Send requests to NCBI's E-utilities through Bio.Entrez, with retries.

Bio.Entrez builds the requests and keeps NCBI's rate: at most one request every 0.37 s, or every 0.1
s with an API key. Its own retries bypass this limit, so they are switched off. Every retry here is
a new request through Bio.Entrez, and so keeps the rate.

Environment
-----------
NCBI_API_KEY : the API key, read at each request and never shown.
ESCALA_EUTILS_URL : address of a mirror or a test server, used in place of
    https://eutils.ncbi.nlm.nih.gov. It receives the key. NCBI's rate limit is not applied to it,
    unless its host is under nih.gov.
ESCALA_EUTILS_WAIT : seconds before the first retry (default 1). A random wait of up to the same
    length is added. Ignored for NCBI's own server.
"""

from __future__ import annotations

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
from email.utils import mktime_tz, parsedate_tz
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote_plus, urlsplit
from urllib.request import Request, urlopen

from Bio import Entrez
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt
from tenacity import wait_exponential_jitter as exponential

from escala.core.errors import InputError

NCBI = "https://eutils.ncbi.nlm.nih.gov"
KEY_VARIABLE = "NCBI_API_KEY"
URL_VARIABLE = "ESCALA_EUTILS_URL"
FIRST_WAIT_VARIABLE = "ESCALA_EUTILS_WAIT"
#: Failed tries in a row after which a request is given up.
MAX_TRIES = 8
#: Longest wait between two tries, unless the server asks for a longer one.
MAX_WAIT_SECONDS = 60
#: A server that asks for a longer wait than this is asked again after this time.
MAX_RETRY_AFTER_SECONDS = 600
#: A request fails if no byte arrives for this long.
TIMEOUT_SECONDS = 60
RATE_LIMIT = re.compile(r"rate limit", re.I)
EXPIRED_SEARCH = re.compile(r"unable to obtain query|webenv|query_key|history", re.I)
#: NCBI's answers for an identifier that it does not know. Sometimes it gives them, by mistake, for
#: one that it knows.
NO_SUCH_RECORD = re.compile(r"id list is empty|id.parameter.is.empty|failed to understand id", re.I)
BAD_KEY = re.compile(r"api.key.{0,20}invalid|invalid.{0,20}api.key", re.I | re.S)

T = TypeVar("T")


class Failure(Exception):
    """A failed request with its reason. The text never holds the key."""


class PermanentFailure(Failure):
    """A failure that would occur again after a retry."""


class RetryableFailure(Failure):
    """A failure that may not occur again after a retry.

    Attributes
    ----------
    wait : seconds that the server asks to wait before the retry.
    """

    def __init__(self, reason: str, wait: float = 0):
        self.wait = wait
        super().__init__(reason)


class TruncatedAnswer(RetryableFailure):
    """An answer that ended too early; `text` is the part that arrived."""

    def __init__(self, text: str):
        self.text = text
        super().__init__("the answer ended too early")


class NotFound(Failure):
    """The server has none of the requested records."""


class Client:
    """Send one user's requests to NCBI or to a mirror.

    Parameters
    ----------
    email : e-mail address, which every request carries.

    Attributes
    ----------
    faults : number of retries so far, by the reason of the fault.

    Raises
    ------
    InputError : an environment variable holds no HTTP address, or no number of seconds.
    """

    def __init__(self, email: str):
        self.email = email
        self.faults: Counter[str] = Counter()
        self._server, host = _server()
        self._is_ncbi = host == "nih.gov" or host.endswith(".nih.gov")
        first_wait = 1.0 if self._is_ncbi else _first_wait()
        self._backoff = exponential(multiplier=first_wait, max=MAX_WAIT_SECONDS, jitter=first_wait)

    @contextmanager
    def ncbi_lock(self) -> Iterator[None]:
        """Hold a lock so that one download at a time uses this user's NCBI rate.

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
        Failure : its class tells whether a retry may help.
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
            failure = _failure_of(error)
        except IncompleteRead as error:
            failure = TruncatedAnswer(_text(error.partial))
        except (OSError, HTTPException, UnicodeDecodeError) as error:
            reason = getattr(error, "reason", error) or type(error).__name__
            failure = RetryableFailure(_without_key(f"no answer: {reason}"))
        else:
            failure = None
        if failure:
            raise failure
        return _text(body)

    def with_retries(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`; retry after each `RetryableFailure`, with growing waits.

        Raises
        ------
        Failure : the last `RetryableFailure` after `MAX_TRIES` attempts, or the first failure that
            is not retryable.
        """

        def count_fault(state: RetryCallState) -> None:
            self.faults[str(state.outcome.exception())] += 1

        def wait(state: RetryCallState) -> float:
            retry_after = min(state.outcome.exception().wait, MAX_RETRY_AFTER_SECONDS)
            return max(retry_after, self._backoff(state))

        return Retrying(
            stop=stop_after_attempt(MAX_TRIES),
            retry=retry_if_exception_type(RetryableFailure),
            wait=wait,
            before_sleep=count_fault,
            reraise=True,
        )(attempt)

    @contextmanager
    def _configured(self) -> Iterator[None]:
        """Patch Bio.Entrez, which has no setting for the address or the timeout."""
        before = Entrez.urlopen, Entrez.max_tries

        def open_on_server(request: Request):
            request.full_url = request.full_url.replace(NCBI, self._server, 1)
            return urlopen(request, timeout=TIMEOUT_SECONDS)

        Entrez.urlopen, Entrez.max_tries = open_on_server, 1
        if not self._is_ncbi:
            # The time of Bio.Entrez's last request: 0 switches its rate limit off.
            Entrez._open.previous = 0
        try:
            yield
        finally:
            Entrez.urlopen, Entrez.max_tries = before


def raise_reported_failure(text: str) -> NoReturn:
    """Raise the failure that is reported by an answer that holds no records.

    Raises
    ------
    NotFound : it says that the server has no such record.
    PermanentFailure : it says that the key is not valid.
    RetryableFailure : anything else, also an empty answer.
    """
    raise _reported_failure(text, "the server answers")


def parse_answer(text: str) -> dict:
    """Return the content of an answer in JSON.

    Raises
    ------
    Failure : it is no JSON object, or the object has the key `error`.
    """
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or "error" in content:
        raise_reported_failure(text)
    return content


def _failure_of(error: HTTPError) -> Failure:
    """Return the failure that fits an HTTP error."""
    with error:
        try:
            text = _text(error.read(4000))
        except (OSError, HTTPException):
            text = ""
    if error.code in (408, 429) or error.code >= 500:
        return RetryableFailure(f"HTTP {error.code}", _retry_after(error.headers))
    introduction = f"the server answers HTTP {error.code}"
    # NCBI uses this status for three things: its own faults, unknown records, and invalid keys.
    if error.code == 400:
        return _reported_failure(text, introduction)
    return PermanentFailure(f"{introduction}: {excerpt(text)}")


def _reported_failure(text: str, introduction: str) -> Failure:
    """Return the failure that an answer reports.

    Parameters
    ----------
    text : the answer.
    introduction : the words of the message before the quoted answer.
    """
    if BAD_KEY.search(text):
        return PermanentFailure(f"the server does not accept the key in {KEY_VARIABLE}")
    if NO_SUCH_RECORD.search(text):
        return NotFound(f"{introduction}: {excerpt(text)}")
    if RATE_LIMIT.search(text):
        return RetryableFailure("too many requests")
    if EXPIRED_SEARCH.search(text):
        return RetryableFailure("the search has expired")
    return RetryableFailure(f"{introduction}: {excerpt(text)}")


def _retry_after(headers: Message) -> float:
    """Return the seconds that a Retry-After header asks for, as a number or a date (RFC 9110).

    A date is compared with the `Date` header of the same answer, because the server's clock may
    differ from this machine's.
    """
    value = headers.get("Retry-After", "0")
    try:
        return max(0.0, float(value))
    except ValueError:
        when, sent = map(parsedate_tz, (value, headers.get("Date", "")))
        if not (when and sent):
            return 0.0
        return max(0.0, float(mktime_tz(when) - mktime_tz(sent)))


def _own_folder() -> Path:
    """Return a folder that only this user can write to, so that nobody else can block its lock.

    Raises
    ------
    InputError : it belongs to another user, or others may write to it.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "escala"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise InputError(
            "the folder of the NCBI lock file",
            str(folder),
            "is another user's, or others may write to it",
            "run chown and chmod 700 on it, or set XDG_CACHE_HOME to a folder of your own",
        )
    return folder


def _server() -> tuple[str, str]:
    """Return the address of the server and its host name."""
    url = (os.environ.get(URL_VARIABLE) or NCBI).rstrip("/")
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(URL_VARIABLE, url, "is no HTTP address", "give it as https://HOST")
    return url, parts.hostname


def _first_wait() -> float:
    value = os.environ.get(FIRST_WAIT_VARIABLE) or "1"
    try:
        return max(0.0, float(value))
    except ValueError:
        raise InputError(FIRST_WAIT_VARIABLE, value, "is no number", "give seconds") from None


def _key() -> str | None:
    return os.environ.get(KEY_VARIABLE, "").strip() or None


def _text(body: str | bytes) -> str:
    return body if isinstance(body, str) else body.decode("utf-8", "replace")


def excerpt(text: str, limit: int = 120) -> str:
    """Return an answer as one short line, with the API key masked.

    NCBI repeats the key in some answers.
    """
    plain = " ".join(re.sub(r"<[^>]*>", " ", _without_key(text)).split())
    return plain[:limit] or "nothing"


def _without_key(text: str) -> str:
    key = _key()
    for form in (key, quote_plus(key)) if key else ():
        text = text.replace(form, "***")
    return text
