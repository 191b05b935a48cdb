"""Why a text is no answer, without a model: at which byte, because of which keyword, and what was expected there."""

import safegen
from safegen import JsonSchema, Regex

ORDER = JsonSchema(
    {
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
            "items": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "minItems": 1, "uniqueItems": True},
            "total": {"type": "number", "minimum": 0, "multipleOf": 0.05},
        },
        "required": ["id", "items"],
        "additionalProperties": False,
    }
)

TEXTS = [
    '{"id":"AB-1234","items":["tea"],"total":3.15}',
    '{"id":"AB-12345","items":["tea"]}',
    '{"id":"AB-1234","items":["tea","tea"]}',
    '{"id":"AB-1234","items":["tea"],"total":3.151}',
    '{"items":["tea"],"id":"AB-1234"}',
    '{"id":"AB-1234","items":["tea"',
]


def main() -> None:
    for finding in safegen.check(ORDER):
        print(f"#{finding.pointer} {finding.keyword}: {finding.handling} {finding.note}".rstrip())
    print(safegen.explain(Regex(r"\d{4}-\d{2}"), "2024-1x"))
    rejected = 0
    for text in TEXTS:
        found = safegen.explain(ORDER, text)
        rejected += not found.accepted
        legal = text.encode()[: found.byte].decode(errors="replace")
        print(f"{legal} ...\n    {found}")
    print(f"{rejected} of {len(TEXTS)} texts explained")


if __name__ == "__main__":
    main()
