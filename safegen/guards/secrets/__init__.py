"""Keys, tokens and passwords. All findings are reported, a key that stands twice twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from safegen.errors import RequestError
from safegen.guards.base import GuardView, Match, texts
from safegen.guards.following import Follower
from safegen.guards.pattern_guard import PatternGuard
from safegen.guards.secrets import blocks, entropy, formats

RULES = (formats.RULE, blocks.PRIVATE_KEY, blocks.TOKEN, blocks.CONNECTION, entropy.RULE)
RULE_NAMES = (*formats.FORMATS, "private_key", "json_web_token", "connection_string", "named_secret")


class Secrets(PatternGuard):
    """Keys of providers by their formats, private keys, tokens, credentials in URLs, and random values behind a name.

    ignore: rules that are left out, of RULE_NAMES. allow: texts that are no findings, such as keys of a documentation;
    compared as a whole.
    """

    version = "2"

    def __init__(self, *, ignore: Sequence[str] = (), allow: Sequence[str] = (), **common: Any) -> None:
        super().__init__(**common)
        self.ignore = texts(self, "ignore", ignore)
        self.allow = texts(self, "allow", allow)
        for name in self.ignore:
            if name not in RULE_NAMES:
                raise RequestError(
                    f"Secrets: ignore holds {name!r}; known are {', '.join(RULE_NAMES)}", field="ignore", value=name
                )
        self._ignored, self._allowed = frozenset(self.ignore), frozenset(self.allow)
        self._use(RULES)

    def find(self, view: GuardView) -> list[Match]:
        return [
            match
            for match in super().find(view)
            if match.rule not in self._ignored and view.text[match.start : match.end] not in self._allowed
        ]

    def follow(self) -> Follower | None:
        """What `find` leaves out of the rules' findings makes nothing less quiet."""
        return super().follow()
