"""Send requests to NCBI's E-utilities, with retries, at NCBI's rate (NBK25497).

The rate is at most one request every 0.37 s, or every 0.1 s with an API key, retries included.

Environment
-----------
NCBI_API_KEY : the API key, read at each request and never shown.
ESCALA_EUTILS_URL : address of a mirror or a test server, used in place of
    https://eutils.ncbi.nlm.nih.gov. This server receives the key. NCBI's rate limit applies only to
    hosts under nih.gov.
ESCALA_EUTILS_WAIT : seconds before the first retry (default 1). A random wait of at most this
    length is added. Waits for NCBI's own server do not change.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import TypeVar
from urllib.error import HTTPError
from urllib.parse import quote_plus, urlencode, urlsplit
from urllib.request import urlopen

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt
from tenacity import wait_exponential_jitter as exponential

from escala.core.errors import InputError
from escala.core.files import take_turns

NCBI = "https://eutils.ncbi.nlm.nih.gov"
KEY_VARIABLE = "NCBI_API_KEY"
URL_VARIABLE = "ESCALA_EUTILS_URL"
FIRST_WAIT_VARIABLE = "ESCALA_EUTILS_WAIT"
#: A request is given up after this number of failed tries in a row.
MAX_TRIES = 8
#: Longest wait between two tries, in general and if the server asks for a longer wait.
MAX_WAIT_SECONDS, MAX_RETRY_AFTER_SECONDS = 60, 600
#: A request fails if no byte arrives for this long.
TIMEOUT_SECONDS = 60
RATE_LIMIT = re.compile(r"rate limit", re.I)
EXPIRED_SEARCH = re.compile(r"unable to obtain query|webenv|query_key|history", re.I)
#: NCBI's answers for an unknown identifier, and sometimes also for a known one.
NO_SUCH_RECORD = re.compile(r"id list is empty|id.parameter.is.empty|failed to understand id", re.I)
BAD_KEY = re.compile(r"api.key.{0,20}invalid|invalid.{0,20}api.key", re.I | re.S)

T = TypeVar("T")


class Failure(Exception):
    """A failed request with its reason. The text never holds the key."""


class PermanentFailure(Failure):
    """A failure that would happen again after a retry."""


class NotFound(Failure):
    """The server has none of the requested records."""


class RetryableFailure(Failure):
    """A failure that may end with time. The server may ask for a wait of `wait` seconds."""

    def __init__(self, reason: str, wait: float = 0):
        self.wait = wait
        super().__init__(reason)


class TruncatedAnswer(RetryableFailure):
    """An answer that ended too early; `text` is the part that arrived."""

    def __init__(self, text: str):
        self.text = text
        super().__init__("the answer ended too early")


class Client:
    """Send one user's requests, with an e-mail address, to NCBI or to a mirror.

    `faults` is the number of retries so far, by the reason of the fault. An environment variable
    with a wrong address or a wrong number of seconds is refused.
    """

    def __init__(self, email: str):
        self.email = email
        self.faults: Counter[str] = Counter()
        self._server = (os.environ.get(URL_VARIABLE) or NCBI).rstrip("/")
        try:
            scheme, host = urlsplit(self._server).scheme, urlsplit(self._server).hostname
        except ValueError:
            host = None
        if not host or scheme not in ("http", "https"):
            remedy = "give it as https://HOST"
            raise InputError(URL_VARIABLE, self._server, "is not an HTTP address", remedy)
        #: The earliest `time.monotonic` of the next request.
        self._next_request = 0.0
        self._is_ncbi = host == "nih.gov" or host.endswith(".nih.gov")
        value = "1" if self._is_ncbi else os.environ.get(FIRST_WAIT_VARIABLE) or "1"
        try:
            wait = max(0.0, float(value))
        except ValueError:
            reason, remedy = "is not a number", "give seconds"
            raise InputError(FIRST_WAIT_VARIABLE, value, reason, remedy) from None
        self._backoff = exponential(multiplier=wait, max=MAX_WAIT_SECONDS, jitter=wait)

    @contextmanager
    def ncbi_lock(self) -> Iterator[None]:
        """Hold the lock of this user's requests to NCBI; a mirror needs no lock."""
        if not self._is_ncbi:
            yield
            return
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "escala"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with take_turns(
            folder / "ncbi.lock", "waiting: another download from NCBI is not at its end"
        ):
            yield

    def ask(self, utility: str, **parameters: object) -> str:
        """Return the answer to one request to a utility, such as `efetch`, without retries.

        The class of a `Failure` tells whether a retry may help.
        """
        key = _key()
        values = {"db": "nuccore", "tool": "escala", "email": self.email} | parameters
        body = urlencode(values | ({"api_key": key} if key else {})).encode()
        if self._is_ncbi:
            time.sleep(max(0.0, self._next_request - time.monotonic()))
            self._next_request = time.monotonic() + (0.1 if key else 0.37)
        # Raise outside the handlers, because the original exceptions may hold the key.
        try:
            address = f"{self._server}/entrez/eutils/{utility}.fcgi"
            with urlopen(address, body, timeout=TIMEOUT_SECONDS) as reply:
                return reply.read().decode("utf-8", "replace")
        except HTTPError as error:
            failure = _failure_of_status(error)
        except IncompleteRead as error:
            failure = TruncatedAnswer(error.partial.decode("utf-8", "replace"))
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error) or type(error).__name__
            failure = RetryableFailure(_without_key(f"no answer: {reason}"))
        raise failure

    def with_retries(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`; retry after each `RetryableFailure`, with growing waits.

        After `MAX_TRIES` attempts the last failure is raised. A failure of another class is raised
        at once.
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


def failure_of(text: str, introduction: str = "the server answers") -> Failure:
    """Return the failure that an answer without records reports; an empty answer can be retried."""
    if BAD_KEY.search(text):
        return PermanentFailure(f"the server does not accept the key in {KEY_VARIABLE}")
    if NO_SUCH_RECORD.search(text):
        return NotFound(f"{introduction}: {excerpt(text)}")
    if RATE_LIMIT.search(text):
        return RetryableFailure("too many requests")
    if EXPIRED_SEARCH.search(text):
        return RetryableFailure("the search has expired")
    return RetryableFailure(f"{introduction}: {excerpt(text)}")


def _failure_of_status(error: HTTPError) -> Failure:
    """Return the failure that the status of an HTTP error and its text report."""
    with error:
        try:
            text = error.read(4000).decode("utf-8", "replace")
        except (OSError, HTTPException):
            text = ""
    if error.code in (408, 429) or error.code >= 500:
        seconds = error.headers.get("Retry-After", "")
        return RetryableFailure(f"HTTP {error.code}", int(seconds) if seconds.isdecimal() else 0)
    introduction = f"the server answers HTTP {error.code}"
    # NCBI uses this status for three things: its own faults, unknown records, and invalid keys.
    if error.code == 400:
        return failure_of(text, introduction)
    return PermanentFailure(f"{introduction}: {excerpt(text)}")


def _key() -> str | None:
    return os.environ.get(KEY_VARIABLE, "").strip() or None


def excerpt(text: str) -> str:
    """Return an answer as one short line, without the API key, which NCBI may repeat."""
    plain = " ".join(re.sub(r"<[^>]*>", " ", _without_key(text)).split())
    return plain[:120] or "nothing"


def _without_key(text: str) -> str:
    """Return a text with stars in place of the API key."""
    key = _key()
    for form in (key, quote_plus(key)) if key else ():
        text = text.replace(form, "***")
    return text
