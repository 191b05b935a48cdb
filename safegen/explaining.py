"""`explain`: where and why a text is rejected, without a model.

The machine that decodes says at which byte it would have stopped, which schema positions were open there, and what it
would have taken instead; the keywords to blame are found by asking each alone (`safegen.grammars.rejection`). A text
that is a right value, only not written as the type asks for (order, spelling, whitespace), is told apart first.

(The module is not called `explain`: a submodule of that name would replace the function on the package.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from safegen.checking import options_of, require_text
from safegen.errors import GrammarError, SchemaError
from safegen.grammars.matcher import LimitExceeded
from safegen.grammars.options import SchemaOptions
from safegen.grammars.wording import END
from safegen.limits import Limits
from safegen.output_type import OutputType, compile_type
from safegen.tools import Tools
from safegen.types import Choice, Grammar, JsonSchema, Regex, Think

if TYPE_CHECKING:
    from safegen.grammars.matcher import Program
    from safegen.grammars.rejection import Rejection

_RELAXED: dict[str, str] = {"whitespace": "flexible", "property_order": "any", "spelling": "any"}
_SHOWN_CHARS = 12
_DEADLINES = 2  # of compiling, that an explanation may take before it stops looking closer
_FIRST_BYTES, _GROWTH = 64, 1.4
_MOST_LONGER = 8.0  # times as long as for the piece before: 1.4 ** 6


@dataclass(frozen=True, slots=True)
class Blamed:
    """One place to blame. pointer: JSON Pointer of a schema object, under `/<tool>` for Tools; the name of a rule for a
    Grammar. keyword: the one there, "" if none is; the name of a terminal for a Grammar."""

    pointer: str
    keyword: str

    def __str__(self) -> str:
        fragment = "#" if self.pointer[:1] in ("", "/") else ""
        return f"{fragment}{self.pointer}" + (f" ({self.keyword})" if self.keyword else "")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a text is rejected, or that it is not.

    accepted: `safegen.matches` says so too. byte: offset, in the text's UTF-8, of the first byte that no answer has
    there; the length of the text where it only lacks an end; None if accepted. pointer, keyword: the first of `places`,
    "" if there is none. places: all that are to blame, as where a minimum and a maximum leave nothing between them.
    expected: what could stand at that byte. found: what does. reason: the above as a sentence.
    """

    accepted: bool
    byte: int | None = None
    places: tuple[Blamed, ...] = ()
    expected: tuple[str, ...] = ()
    found: str = ""
    reason: str = "the text is accepted"

    @property
    def pointer(self) -> str:
        return self.places[0].pointer if self.places else ""

    @property
    def keyword(self) -> str:
        return self.places[0].keyword if self.places else ""

    def __str__(self) -> str:
        if self.accepted:
            return self.reason
        places = ", ".join(map(str, self.places))
        expected = f" Expected: {' | '.join(self.expected)}" if self.expected else ""
        return f"byte {self.byte}: {self.reason}." + (f" At {places}." if places else "") + expected


def explain(spec: Any, text: str, *, limits: Limits | None = None, **options: Any) -> Explanation:
    """Where and why the decoder would reject a text: the byte, the schema positions, and what was expected there.

    spec: any output type; of one that is compiled already only the byte and the expectations are known. options: as in
    `safegen.matches`, which says True exactly where `accepted` is.

    Raises SchemaError or GrammarError for a type that cannot be served (or a text whose automaton passes `limits`, or
    that takes too long to judge, as with a very ambiguous grammar), and RequestError for an option that does not exist
    or a text that is not a str.
    """
    require_text(text)
    asked, limits = options_of(spec, options), limits if limits is not None else Limits()
    until = monotonic() + _DEADLINES * limits.compile_deadline_s
    encoded, surrogate = _encoded(text)
    try:
        rejection = _rejected(spec, limits, asked, encoded, until)
    except LimitExceeded as error:
        raise SchemaError(f"this text cannot be judged: {error}", hint="Raise Limits(max_states=...).") from error
    if surrogate is not None and (rejection is None or rejection.byte == len(encoded)):
        return Explanation(False, len(encoded), found=surrogate, reason="a lone surrogate has no UTF-8")
    if rejection is None:
        return Explanation(True)
    written, rejection = _as_written(_Asked(spec, asked, limits, until, encoded), rejection)
    found = _shown(encoded, rejection.byte)
    places = tuple(Blamed(*place) for place in rejection.places)
    return Explanation(False, rejection.byte, places, rejection.expected, found, _reason(rejection, found, written))


def _rejected(spec: Any, limits: Limits, asked: SchemaOptions | None, text: bytes, until: float) -> Rejection | None:
    from safegen.grammars.origins import Origins
    from safegen.grammars.rejection import rejection_of

    origins = Origins()
    program = compile_type(spec, limits, asked, origins=origins).program
    if program is None:
        return None
    _check_time(program, text, until)
    return rejection_of(program, origins, text)


def _check_time(program: Program, text: bytes, until: float) -> None:
    """Raises SchemaError where judging the text would take too long; nothing can be stopped once it is at work, so
    pieces of it are judged first, each somewhat longer than the one before."""
    num_bytes = _FIRST_BYTES
    while num_bytes < len(text):
        started = monotonic()
        if program.longest_prefix(text[:num_bytes]) < num_bytes:
            return
        now = monotonic()
        if now + _MOST_LONGER * (now - started) > until:
            raise SchemaError(
                f"a text of {len(text):,} bytes takes too long to judge",
                hint="Shorten it, make the grammar less ambiguous, or raise Limits(compile_deadline_s=...).",
            )
        num_bytes = int(_GROWTH * num_bytes)


def _encoded(text: str) -> tuple[bytes, str | None]:
    """The text's UTF-8 as far as it has one, and the surrogate that it stops at."""
    try:
        return text.encode(), None
    except UnicodeEncodeError as error:
        return text[: error.start].encode(), f"U+{ord(text[error.start]):04X}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """until: when to stop asking what another writing would change."""

    spec: Any
    options: SchemaOptions | None
    limits: Limits
    until: float
    text: bytes

    def rejected(self, options: SchemaOptions) -> Rejection | None:
        """Under other options. Raises SchemaError, also when time is up."""
        left_s = self.until - monotonic()
        if left_s <= 0:
            raise SchemaError("no time is left")
        limits = replace(self.limits, compile_deadline_s=left_s)
        return _rejected(self.spec, limits, options, self.text, self.until)


def _as_written(asked: _Asked, rejection: Rejection) -> tuple[list[str], Rejection]:
    """The options of writing that alone are in the way: one of them, or else all together. And the rejection, with
    the keywords to blame where those come to light a little later, when every writing is allowed."""
    spec, text = asked.spec, asked.text
    if isinstance(spec, OutputType | Regex | Choice | Grammar) or spec is None:
        return [], rejection
    inner = spec.inner if isinstance(spec, Think) else spec
    options = asked.options or (inner.options if isinstance(inner, JsonSchema | Tools) else SchemaOptions())
    strict: dict[str, Any] = {name: value for name, value in _RELAXED.items() if getattr(options, name) != value}
    if not strict or rejection.kind == "keyword":
        return [], rejection
    is_blank = text[rejection.byte : rejection.byte + 1].isspace()
    end = rejection.byte if rejection.value_end is None or is_blank else max(rejection.byte, rejection.value_end)

    def goes_on(changed: dict[str, Any]) -> bool:
        later = asked.rejected(replace(options, **changed))
        return _is_beyond(later, rejection, end)

    try:
        every = asked.rejected(replace(options, **strict))
        if every is None or _is_beyond(every, rejection, end):
            return [name for name, value in strict.items() if goes_on({name: value})] or list(strict), rejection
    except (SchemaError, GrammarError, LimitExceeded):
        return [], rejection  # every writing together passes a limit that this one does not
    if every.kind in ("keyword", "not JSON"):
        rejection = replace(rejection, kind=every.kind, places=every.places)
    return [], rejection


def _is_beyond(later: Rejection | None, rejection: Rejection, end: int) -> bool:
    """Whether what was in the way at first, up to `end`, is of no matter any more."""
    return later is None or later.byte > end or (later.kind == "ends early" and later.byte > rejection.byte)


def _shown(text: bytes, byte: int) -> str:
    if byte == len(text):
        return "the end of the text"
    start = byte
    while start > 0 and text[start] & 0xC0 == 0x80:  # show the whole character
        start -= 1
    following = text[start : start + 4 * _SHOWN_CHARS].decode("utf-8", "ignore")
    return repr(following[:1])


def _reason(rejection: Rejection, found: str, relaxed: list[str]) -> str:
    if relaxed:
        named = " and ".join(f"{name}={_RELAXED[name]!r}" for name in relaxed)
        return f"{found} is not how this type is written; {named} would take it"
    if rejection.kind == "ends early":
        return "the text ends too early"
    if rejection.kind == "not JSON":
        return f"no JSON goes on with {found} here, within the limits of digits, whitespace and nesting"
    if rejection.kind == "keyword":
        words = dict.fromkeys(place.keyword for place in rejection.places if place.keyword)
        return f"{found} cannot stand here" + (f" because of {', '.join(words)}" if words else "")
    if set(rejection.expected) <= {END, "whitespace"}:
        return f"the answer is whole, and {found} follows it"
    return f"{found} cannot stand here"
