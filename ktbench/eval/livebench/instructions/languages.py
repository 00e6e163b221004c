"""Tells a text's language by the script of its letters, and within a script by its function words and own letters.

It knows the 30 languages that IFEval asks for, and Chinese. Another language may be taken for one of the same script.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Traits:
    """Frequent words of a language, and letters that no other here has."""

    words: frozenset[str]
    letters: str


def _traits(words: str, letters: str = "") -> _Traits:
    return _Traits(frozenset(words.split()), letters)


# Blocks of Unicode: first and last code, and the languages written in it.
_SCRIPTS = (
    (0x0041, 0x024F, "en es pt fr de it pl vi sw fi"),
    (0x1E00, 0x1EFF, "vi"),
    (0x0400, 0x04FF, "ru uk bg"),
    (0x0590, 0x05FF, "he"),
    (0x0600, 0x06FF, "ar fa ur"),
    (0x0900, 0x097F, "hi mr ne"),
    (0x0980, 0x09FF, "bn"),
    (0x0A00, 0x0A7F, "pa"),
    (0x0A80, 0x0AFF, "gu"),
    (0x0B80, 0x0BFF, "ta"),
    (0x0C00, 0x0C7F, "te"),
    (0x0C80, 0x0CFF, "kn"),
    (0x0D00, 0x0D7F, "ml"),
    (0x0E00, 0x0E7F, "th"),
    (0x3040, 0x30FF, "ja"),
    (0x4E00, 0x9FFF, "zh"),
    (0xAC00, 0xD7A3, "ko"),
)
ASKED = tuple(sorted({code for *_, codes in _SCRIPTS for code in codes.split()} - {"zh"}))

_TRAITS = {
    "en": _traits(
        "the of and to in is that it for was on are as with be this by an at not or from have you which but they we "
        "his her their has will can would there your he she my our all so if when what who had were been more do me i a"
    ),
    "es": _traits(
        "de la que el en y los se del las un por con no una su para es al lo como más pero sus le ya este cuando muy "
        "sin sobre también me hasta hay donde son está",
        "ñ¿¡",
    ),
    "pt": _traits(
        "de que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem seu sua ou "
        "ser quando muito há nos já está eu também são",
        "ãõ",
    ),
    "fr": _traits(
        "de la le et les des en un du une que est pour qui dans par plus pas au sur ne se ce il sont avec son aux ou "
        "mais cette comme nous vous été leur à elle je",
        "œ",
    ),
    "de": _traits(
        "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es werden aus er hat "
        "dass sie nach wird bei einer um am sind noch wie ich wir",
        "ß",
    ),
    "it": _traits(
        "di e il la che in per un è del con non una le da si al dei nel alla sono come più anche della gli questo ma "
        "lo ha nella delle loro ogni ed"
    ),
    "pl": _traits(
        "w na z do się że nie to jest od za po jak przez ale dla są być tym co lub który oraz ich czy jego i we ma",
        "ąćęłńśźż",
    ),
    "vi": _traits(
        "và là của có cho trong một được không với các người này để những khi đã về từ đến như tôi ở mọi đều", "đơưă"
    ),
    "sw": _traits(
        "ya na wa kwa ni katika za la kama hii yake watu cha au hiyo ambayo pia lakini wote kila bila haki mtu yao "
        "wake zao huo hizo"
    ),
    "fi": _traits(
        "ja on ei että se oli hän mutta ovat kuin myös joka tai sen niin ole kun hänen mukaan sekä tämä vain "
        "olla kaikki"
    ),
    "ru": _traits("и в не на что с по это как а но из у же за от было они он все или для его", "ыэё"),
    "uk": _traits("і в на не що з до та як це за від або був його у й для вони всі", "іїєґ"),
    "bg": _traits("и на да се за от не ще са по като това е с до че или при който беше в със те", "ъ"),
    "ar": _traits("في من على إلى أن هذا هذه التي الذي كان لا ما مع هو هي أو كما عن و وقد", "ةىأإيك"),
    "fa": _traits("و در به از که این را با است برای آن می های خود تا یک هم شد هر اند کند"),
    "ur": _traits("ہے ہیں کے کی کا میں اور سے کو پر نے یہ وہ تھا ایک", "ٹڈڑںےھہ"),
    "hi": _traits("है हैं का की के में और से को पर नहीं यह वह था थी थे हो कि ने भी एक तो इस उन्हें"),
    "mr": _traits("आहे आहेत आणि हा ही हे ते तो ती मध्ये नाही होते होता असे या मी व त्यांना सर्व", "ळ"),
    "ne": _traits("छ छन् र मा ले लाई हो गर्न हुन्छ हुन् पनि तर यो त्यो थियो भएको गरेको हुने सबै छैन एउटा"),
}
_EDGES = re.compile(r"^[\W\d_]+|[!-@\[-`{-~।،؟۔…«»“”‘’]+$")


def language_of(text: str) -> str | None:
    """The ISO 639-1 code of a text's language, None where it has no letters and no words to tell it by."""
    lower = text.lower()
    languages = _languages_of_script(lower)
    if len(languages) < 2:
        return next(iter(languages), None)
    words = [_EDGES.sub("", word) for word in lower.split()]
    hits = {language: _hits(_TRAITS[language], words, lower) for language in languages}
    best = max(hits, key=hits.__getitem__)
    return best if hits[best] else None


def _languages_of_script(text: str) -> tuple[str, ...]:
    """The languages of the script that most letters are in; Japanese has its own letters among Chinese ones."""
    letters = Counter(_script(letter) for letter in text if letter.isalpha())
    del letters[""]
    if letters["zh"] and letters["ja"]:
        letters["ja"] += letters.pop("zh")
    letters[_SCRIPTS[0][2]] += letters.pop("vi", 0)
    script, count = max(letters.items(), key=lambda item: item[1])
    return tuple(script.split()) if count else ()


def _script(letter: str) -> str:
    """The languages of a letter's script, empty where none is known."""
    return next((languages for first, last, languages in _SCRIPTS if first <= ord(letter) <= last), "")


def _hits(traits: _Traits, words: list[str], text: str) -> int:
    return sum(word in traits.words for word in words) + sum(map(text.count, traits.letters))
