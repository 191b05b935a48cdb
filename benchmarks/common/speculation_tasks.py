"""What speculation is measured on: JSON extraction, tool calls, copying of code, and prose. Texts are made up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safegen import JsonSchema, Tools
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.vocabulary import Vocabulary
from safegen.output_type import compile_type


@dataclass(frozen=True)
class Task:
    """Prompts of one kind. spec: the output type, None for free text. max_tokens: of an answer."""

    name: str
    prompts: tuple[str, ...]
    spec: Any
    max_tokens: int


_PERSONS = (
    "Maria Lopez, born 1989 in Porto, is a marine biologist at the Lisbon Oceanarium. She speaks Portuguese, lives in "
    "Alfama and can be reached at maria.lopez@oceanario.example. Her hobby is long distance cycling.",
    "John Smith (born 1971, Leeds) works as a master carpenter for Woodworks of Yorkshire. He speaks English, lives in "
    "Harrogate and reads mail sent to john@woodworks.example. He spends his weekends with beekeeping.",
    "Aiko Tanaka, born 1996 in Osaka, is a graphic designer at Studio Kumo. She speaks Japanese, lives in Kyoto and "
    "answers aiko.tanaka@kumo.example. Her hobby is film photography.",
    "Pierre Dubois was born in Lyon in 1964. He is the head chef of Restaurant Le Canard, speaks French, lives in "
    "Villeurbanne and has the address pierre@lecanard.example. He likes chess against strong opponents.",
    "Ada Eze, born 1982 in Enugu, is a civil engineer at Bridgewater Partners. She speaks Igbo, lives in Lagos and "
    "writes from ada.eze@bridgewater.example. Her hobby is restoring old radios.",
    "Lars Holm (born 1990, Bergen) is a ferry captain with Fjordline Service. He speaks Norwegian, lives in Stavanger "
    "and his mail is lars.holm@fjordline.example. In winter he goes cross country skiing.",
    "Sofia Rossi, born in Siena in 1978, is a paper conservator at the Biblioteca Comunale. She speaks Italian, lives "
    "in Florence, has the address sofia@biblioteca.example, and grows heirloom tomatoes as a hobby.",
    "Tom Becker, born 1985 in Bremen, is a train dispatcher for Nordbahn Netz. He speaks German, lives in Hamburg, is "
    "reached at tom.becker@nordbahn.example and builds model railways.",
)
_KEYS = ("name", "born", "job", "firm", "home", "mail", "hobby", "about")
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        key: {"type": "integer", "minimum": 1900, "maximum": 2020} if key == "born"
        else {"type": "string", "minLength": 20, "maxLength": 90} if key == "about"
        else {"type": "string", "minLength": 3, "maxLength": 48}
        for key in _KEYS
    },
    "required": list(_KEYS),
    "additionalProperties": False,
}  # fmt: skip

_TOOLS = Tools(
    [
        {
            "name": "book_table",
            "description": "Book a table at a restaurant.",
            "parameters": {
                "type": "object",
                "properties": {
                    "restaurant": {"type": "string", "maxLength": 40},
                    "guests": {"type": "integer", "minimum": 1, "maximum": 20},
                    "guest_name": {"type": "string", "maxLength": 40},
                    "special_wishes": {"type": "string", "maxLength": 60},
                },
                "required": ["restaurant", "guests", "guest_name", "special_wishes"],
                "additionalProperties": False,
            },
        },
        {
            "name": "send_message",
            "description": "Send a message to somebody.",
            "parameters": {
                "type": "object",
                "properties": {
                    "recipient": {"type": "string", "maxLength": 40},
                    "message_text": {"type": "string", "maxLength": 80},
                    "is_urgent": {"type": "boolean"},
                },
                "required": ["recipient", "message_text", "is_urgent"],
                "additionalProperties": False,
            },
        },
    ],
    allow_text=False,
    max_calls=1,
)
_WISHES = (
    "Book a table for four at Restaurant Le Canard for Pierre Dubois, please; we would like to sit by the window.",
    "Tell Ada Eze that the bridge inspection was moved to Monday morning. It is urgent.",
    "Reserve a table for two at Trattoria Siena, name Rossi, and ask for a quiet corner.",
    "Send Lars Holm a message: the ferry to Stavanger leaves one hour later. No hurry.",
    "We are seven and want to eat at the Blue Heron tonight, under Becker; one of us is vegetarian.",
    "Let Aiko Tanaka know that her photographs are ready to be picked up.",
    "A table for three at Harbour House for John Smith, with a high chair for a child.",
    "Write to Sofia Rossi that the manuscript has arrived, urgently.",
)

_CODE = (
    "def total_price(items, tax_rate):\n    subtotal = 0\n    for item in items:\n        subtotal += item.price\n"
    "    return subtotal * (1 + tax_rate)\n",
    "class Counter:\n    def __init__(self):\n        self.count = 0\n\n    def increment(self):\n"
    "        self.count += 1\n        return self.count\n",
    "for (int i = 0; i < n; i++) {\n    for (int j = 0; j < m; j++) {\n        grid[i][j] = i * m + j;\n    }\n}\n",
    "SELECT customer.name, SUM(orders.total)\nFROM customer\nJOIN orders ON orders.customer_id = customer.id\n"
    "GROUP BY customer.name\nORDER BY SUM(orders.total) DESC;\n",
)
_TOPICS = (
    "why the sea is salty", "a rainy market day", "how bread is baked", "the first snow of the year",
    "what a lighthouse keeper does", "an old library at night", "how bees find flowers", "a train in the mountains",
)  # fmt: skip


def tasks() -> dict[str, Task]:
    """By name. The JSON prompts name the keys, so that they can be answered with and without the type."""
    keys = ", ".join(_KEYS)
    found = (
        Task("json", tuple(f"Extract a JSON object with the keys {keys}.\n\n{text}" for text in _PERSONS),
             JsonSchema(PERSON), 200),
        Task("tools", _WISHES, _TOOLS, 96),
        Task("copy", tuple(f"Repeat this code three times, unchanged:\n```\n{code}```" for code in _CODE), None, 160),
        Task("prose", tuple(f"Write a short story about {topic}." for topic in _TOPICS), None, 128),
    )  # fmt: skip
    return {task.name: task for task in found}


def forced_share(spec: Any, texts: list[str]) -> float:
    """The share of the texts' bytes that the output type left no choice for."""
    program = compile_type(spec).program
    assert program is not None
    vocabulary = Vocabulary([*(bytes([value]) for value in range(256)), None], frozenset({256}))
    num_forced = num_bytes = 0
    for text in texts:
        left = text.encode()
        constraint = NativeConstraint(program, vocabulary)
        while left:
            forced = constraint.forced()
            num_forced += len(forced)
            step = forced or left[:1]
            constraint.advance(tuple(step))
            num_bytes += len(step)
            left = left[len(step) :]
    return num_forced / num_bytes
