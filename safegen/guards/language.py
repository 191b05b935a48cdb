"""Which languages a text may be written in, told by script and by the commonest words. Needs no model.

A verdict needs evidence: a text with fewer than `MIN_WORDS` words of a Latin or Cyrillic language, or whose languages
are too close to call, passes. The verdict is about the whole text, so a stream is held to its end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from safegen.errors import RequestError
from safegen.guards.base import Guard, GuardView, Match, texts
from safegen.guards.charset import script_of

MIN_WORDS = 5
_WORD = re.compile(r"[^\W\d_]+")
_SHARE_OF_SCRIPT = 0.3
# Function words, the commonest of each language; what several share counts for each of them.
_COMMON = {
    "en": "the of and to in is that it for was on are as with his they be at this have from or had by not but "
    "what all were we when your can said there an each which she do how their if will about you would my "
    "has been i me",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden "
    "aus er hat dass sie nach wird bei einer um am sind noch wie einem über einen so zum war haben nur "
    "oder aber vor ich wir ihr",
    "fr": "de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce il sont avec "
    "son sa ses ou comme mais on nous vous leur je été cette aux ont deux même tout elle fait",
    "es": "de la que el en y a los se del las un por con no una su para es al lo como más o pero sus le ha me "
    "si sin sobre este ya entre cuando todo esta ser son dos también fue había era muy años hasta desde "
    "nos durante",
    "it": "di e il la che in un a per è una sono del della con non si le da i come anche al dei nel più ha gli "
    "alla ma lo delle su se nella o questo dal essere suo tra quando ho mi ci hanno molto era sua",
    "pt": "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem "
    "à seu sua ou ser quando muito há nos já está eu também só pelo pela até isso ela entre era depois "
    "sem mesmo",
    "nl": "de van een het en in is dat op te zijn met voor niet aan er om ook als bij door maar uit naar dan "
    "nog worden over tot ze of heeft hij kan wordt deze geen wel zo we ik je die meer was",
    "sv": "och att det i en som är på av för med den till inte om ett han de har vi jag var från så men kan när "
    "man ska hon sig eller vad där efter upp nu ut",
    "da": "og i at det er en til på som med for af den de ikke der et har kan om vi han jeg var fra men så skal "
    "havde hun efter eller også nu når blev meget",
    "pl": "i w na z do nie się to że jest o jak po co za od ale dla są przez tym tego był ich jego jej może być "
    "tak już czy tylko oraz lub które który",
    "tr": "ve bir bu için ile da de olarak çok en olan daha gibi kadar sonra ne var mi ama o her ki değil ben sen biz",
    "fi": "ja on ei se että oli en hän mutta kun niin ovat tai jos mitä voi sen joka kuin myös vain ole nyt olla sitä",
    "ru": "и в не на я быть он с что а по это она этот к но они мы весь который из у то за свой так же вы от "
    "все как для",
    "uk": "і в не на я що та з до це як у він за але по від вони так який ми є або вже було для ти й про",
}
_WORDS = {language: frozenset(words.split()) for language, words in _COMMON.items()}
_OF_SCRIPT = {
    "Han": "zh", "Hangul": "ko", "Greek": "el", "Hebrew": "he", "Arabic": "ar", "Devanagari": "hi", "Thai": "th",
    "Armenian": "hy", "Georgian": "ka", "Bengali": "bn", "Tamil": "ta", "Telugu": "te", "Ethiopic": "am",
}  # fmt: skip
LANGUAGES = tuple(sorted({*_WORDS, *_OF_SCRIPT.values(), "ja"}))


class Language(Guard):
    """allow: ISO 639-1 codes of LANGUAGES. A text in another one is a match as a whole."""

    version = "1"
    inline = True

    def __init__(self, *, allow: Sequence[str] = ("en",), **common: Any) -> None:
        super().__init__(**common)
        self.allow = texts(self, "allow", allow)
        for code in self.allow:
            if code not in LANGUAGES:
                raise RequestError(
                    f"Language: allow holds {code!r}; known are {', '.join(LANGUAGES)}", field="allow", value=code
                )

    def find(self, view: GuardView) -> list[Match]:
        told = tell_language(view.text)
        if told is None or told[0] in self.allow:
            return []
        return [Match(0, len(view.text), f"language_{told[0]}", told[1])]


def tell_language(text: str) -> tuple[str, float] | None:
    """(code, certainty), or None where the text does not say."""
    scripts = Counter(script for script in map(script_of, text) if script is not None)
    total = sum(scripts.values())
    if not total:
        return None
    if scripts["Hiragana"] + scripts["Katakana"] > 0.1 * total:
        return "ja", 1.0
    script, count = scripts.most_common(1)[0]
    if script in _OF_SCRIPT and count >= max(2, _SHARE_OF_SCRIPT * total):
        return _OF_SCRIPT[script], count / total
    return _by_words(text)


def _by_words(text: str) -> tuple[str, float] | None:
    words = [word.lower() for word in _WORD.findall(text)]
    if len(words) < MIN_WORDS:
        return None
    hits = {language: sum(word in common for word in words) / len(words) for language, common in _WORDS.items()}
    (best, share), (_, second) = Counter(hits).most_common(2)
    return (best, min(1.0, share * 2)) if share >= 0.15 and share >= 1.25 * second else None
