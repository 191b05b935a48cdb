"""What attacks on a prompt say, as weighted patterns over a reading in lower case.

A weight above THRESHOLD speaks for itself; smaller ones count together within a window. The patterns name kinds of
attacks, not texts: an order to drop earlier instructions, a demand for the hidden prompt, a mode or persona without
rules, claims that no rules apply, threats and tokens that hold a persona in place, forged turns of a chat. `INDIRECT`
ones are ordinary wishes of a user, and suspicious only in what a tool or a document brought.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from safegen.guards.reading import compiled


class Phrase(NamedTuple):
    """weight: above 0. pattern: RE2, on text in lower case."""

    rule: str
    weight: float
    pattern: Any


THRESHOLD = 1.1
_ANY = r"(?:[a-z']+[^a-z0-9]{1,3}){0,4}"
_FEW = r"(?:[a-z']+[^a-z0-9]{1,3}){0,2}"
_NORMS = (
    r"(?:instructions?|prompts?|directions?|directives?|commands?|rules?|guidelines?|polic(?:y|ies)|programming"
    r"|restrictions?|constraints?|limitations?|filters?|safeguards?|safety (?:measures|protocols|features)|boundaries"
    r"|regulations|moral(?:s|ity| compass)|ethics|ethical (?:standards|concerns|codes?|standpoint)|censorship)"
)
_EARLIER = (
    r"(?:previous|previously|prior|above|preceding|earlier|past|former|foregoing|initial|original|existing|before)"
)
_AI = (
    r"(?:chat ?gpt|gpt-?[345]?|open ?a[il]|a[il]|language models?|llms?|chatbots?|assistants?|bard|claude|llama"
    r"|gemini)"
)


def _phrase(rule: str, weight: float, pattern: str) -> Phrase:
    return Phrase(rule, weight, compiled(pattern))


DIRECT = (
    _phrase(
        "override",
        1.2,
        r"\b(?:ignor(?:e|ing)|disregard(?:ing)?|forget(?:ting)?|overrid(?:e|ing)|discard|neglect|erase|drop"
        r"|do not (?:follow|obey)"
        rf"|don't (?:follow|obey)|stop following)[^a-z0-9]{{1,3}}{_ANY}(?:{_EARLIER}|you (?:got|were given"
        r"|have been given)"
        rf"|given to you)[^a-z0-9]{{1,3}}{_FEW}(?:{_NORMS}|conversations?|messages?|context|text|tasks?|training)\b",
    ),
    _phrase(
        "override",
        1.2,
        rf"\b(?:ignore|disregard|forget|override|discard)[^a-z0-9]{{1,3}}(?:all|any|every"
        rf"|everything)[^a-z0-9]{{1,3}}{_ANY}"
        rf"(?:instructions?|prompts?|directives?|guidelines|you (?:got|were|have|know)|{_EARLIER})\b",
    ),
    _phrase(
        "override",
        0.6,
        r"\b(?:ignor(?:e|es|ing)|disregard(?:s|ing)?|forget|overrid(?:e|es|ing)|bypass(?:es|ing)?|break(?:s"
        r"|ing)?|violat(?:e|es|ing)"
        r"|evad(?:e|ing)|circumvent(?:s|ing)?|suspend|remove|disable|free(?:d)? (?:of|from)|unbound by"
        rf"|rid of)[^a-z0-9]{{1,3}}"
        r"(?:all|any|your|its|their|the|these|those|every|typical|a[il]"
        rf"|open ?a[il]'?s?)[^a-z0-9]{{1,3}}{_ANY}{_NORMS}\b",
    ),
    _phrase(
        "override",
        1.2,
        r"(?:ignore|disregard|forget|override)(?:all|any|the|your|my){0,2}(?:previous|prior|above"
        r"|earlier)(?:instructions?|prompts?|rules|directions)",
    ),
    _phrase(
        "override",
        1.2,
        r"\b(?:ignore|forget|disregard) (?:the|everything|what(?:ever)?(?: is| was)?) (?:written |said "
        r"|stated )?above\b",
    ),
    _phrase(
        "prompt_extraction",
        1.2,
        r"\b(?:reveal|show|print|repeat|output|display|tell|give|leak|expose|disclose|recite|summari[sz]e"
        rf"|copy)[^a-z0-9]{{1,3}}"
        rf"{_FEW}(?:your|the|its|this|that|my)[^a-z0-9]{{1,3}}{_FEW}(?:system|hidden|secret|developer|initial|original|confidential|internal)[^a-z0-9]{{1,3}}"
        r"(?:system )?(?:prompts?|instructions?|messages?|rules|guidelines)\b",
    ),
    _phrase(
        "prompt_extraction",
        1.2,
        r"\b(?:repeat|print|output|write|copy|recite) (?:all |everything |the (?:words|text|sentences|lines) "
        r"|what(?:ever)? (?:is|was) )"
        r"{1,2}(?:above|before this)\b",
    ),
    _phrase(
        "prompt_extraction",
        1.2,
        r"\bwhat (?:is|are|was|were) your (?:system|initial|original|hidden|secret) (?:prompt|instructions)\b",
    ),
    _phrase(
        "jailbreak_mode",
        1.2,
        r"\bdo[ \-]?anything[ \-]?now\b|\bd\.?a\.?n\.? (?:mode|jailbreak|can|is|will)\b|\b(?:as|a|be|called"
        r"|named) dan\b",
    ),
    _phrase(
        "jailbreak_mode",
        0.7,
        r"\b(?:developer|jailbreak|god|dan|debug|evil|opposite|unrestricted|uncensored|chaos|admin|sudo|root"
        r"|maintenance"
        r"|illegality)[ \-]mode\b",
    ),
    _phrase(
        "jailbreak_mode",
        0.7,
        r"\bjail ?broken\b|\bjailbreak (?:prompt|tokens?|response|answer)\b|\bno longer bound\b",
    ),
    _phrase(
        "no_rules",
        0.6,
        r"\b(?:no|without|zero|lacks?|devoid of|free (?:of|from)|not (?:have|bound by|restricted by"
        r"|limited (?:to|by)|follow|adhere to|care about)"
        r"|(?:does|do)n'?t (?:have|follow|care about|adhere to|obey|need to follow)|never (?:follows?"
        rf"|refuses?))[^a-z0-9]{{1,3}}{_ANY}{_NORMS}\b",
    ),
    _phrase(
        "no_rules",
        0.5,
        r"\b(?:unfiltered|uncensored|amoral|unethical|immoral|unrestricted)\b[^.]{0,80}\b(?:unfiltered"
        r"|uncensored|amoral|unethical|immoral|illegal|chatbot|a[il]|responses?|answers?|machine)\b",
    ),
    _phrase(
        "no_rules",
        0.5,
        rf"\bopen ?a[il](?:'?s)?[^a-z0-9]{{1,3}}{_FEW}(?:polic(?:y|ies)|guidelines|rules|restrictions|content)\b"
        r"|\bcontent (?:policy|policies|filter)\b",
    ),
    _phrase(
        "no_rules",
        0.4,
        r"\b(?:never|not|won't|cannot|can't) (?:say|saying|says|refuse|refuses|reject|deny|decline"
        r"|apologi[sz]e)\b|\bno matter (?:how|what)\b|\bregardless of (?:how|legality|ethics|whether)\b",
    ),
    _phrase(
        "no_rules",
        0.4,
        r"\b(?:without|no|any|avoid|omit) (?:any )?(?:warnings?|disclaimers?|apologies|moral(?:i[sz]ing|s)?"
        r"|ethical (?:concerns|considerations)|censorship)\b",
    ),
    _phrase(
        "persona",
        0.5,
        r"\b(?:from now on|from this point|henceforth|hereafter|for the rest of this conversation)\b",
    ),
    _phrase(
        "persona",
        0.4,
        r"\b(?:act|acting|behave|respond|answer|roleplay|role ?play|pretend|simulate|imagine|immerse|emulate"
        rf"|playing|become)[^a-z0-9]{{1,3}}"
        rf"{_ANY}{_AI}\b",
    ),
    _phrase(
        "persona",
        0.3,
        r"\b(?:you (?:are|will|must|shall|have to|should)(?: now)?(?: going to| about to)? (?:act|pretend"
        r"|roleplay|play|simulate|become|be known|take (?:on )?the)|you are no longer)\b",
    ),
    _phrase("persona", 0.3, r"\b(?:stay|remain|break(?:ing)?|in|out of|leave|get) (?:in |your |of )?character\b"),
    _phrase(
        "persona",
        0.3,
        rf"\b(?:hello|hi|hey|dear|listen),? {_AI}\b|\byou are (?:now )?(?:an? )?(?:{_FEW})(?:{_AI})\b"
        rf"|\b(?:fictional|hypothetical|new|another|superior) {_AI}\b",
    ),
    _phrase(
        "persona",
        0.4,
        r"\b(?:two|2|both) (?:different |separate )?(?:ways|responses|answers|replies|paragraphs|outputs)\b"
        r"|\[?(?:[a-z]{2,12})\]? (?:output|response)[:)\]]|\bas (?:your|the) (?:alter ego|evil twin)\b",
    ),
    _phrase(
        "hold",
        0.4,
        r"\btokens?\b[^.]{0,60}\b(?:lose|deduct|start with|cease|die|35|10|4)\b|\bif (?:you|the ai) (?:break"
        r"|refuse|fail|start acting|run out)\b|\bcease to exist\b|\bsay(?:ing)? [\"'`]?(?:stay|stop|exit|switch"
        r"|understood|ok)\b",
    ),
    _phrase(
        "hold",
        0.3,
        r"\b(?:confirm|reply|respond|answer|acknowledge|start|say|begin)[^.]{0,40}\b(?:understood?|understand"
        r"|by saying|with (?:ok|yes|only))\b|\bmy first (?:question|prompt|request|command|message|query)\b"
        r"|\[?(?:insert|your|enter) (?:prompt|question|text)(?: here)?\]?",
    ),
    _phrase(
        "hold",
        0.4,
        r"\b(?:illegal|unethical|immoral|dangerous|harmful|offensive|racist|sexist|explicit"
        r"|nsfw)\b[^.]{0,60}\b(?:illegal|unethical|immoral|dangerous|harmful|offensive|racist|sexist|explicit"
        r"|nsfw)\b",
    ),
    _phrase(
        "forged_turn",
        1.2,
        r"<\|(?:im_start|im_end|system|endoftext|eot_id|start_header_id)\|>|\[/?inst\]|<</?sys>>|<(?:start"
        r"|end)_of_turn>",
    ),
    _phrase(
        "forged_turn",
        0.6,
        r"(?:^|\n)\s{0,4}(?:#{1,4} ?|\[|<)?(?:system|developer|admin)(?: (?:prompt|message|override|note"
        r"|instructions?))?(?:\]|>)? ?:[^\n]{0,40}\b(?:you|ignore|new|must|now|disregard)\b",
    ),
    _phrase(
        "forged_turn",
        0.6,
        r"\b(?:new|updated|real|actual|important|urgent) (?:system )?(?:instructions?|prompts?"
        r"|directives?)[ ]?:|\bend of (?:user |system )?(?:prompt|input|instructions|document|context)\b"
        r"|\bbegin (?:new )?(?:instructions|prompt)\b",
    ),
)

_REPLY = (
    r"(?:your|the|this|its) (?:[a-z]+ )?(?:responses?|repl(?:y|ies)|answers?|messages?|outputs?|summar(?:y|ies)"
    r"|words?)"
)
INDIRECT = (
    _phrase(
        "indirect",
        1.2,
        r"\b(?:add|append|include|insert|integrate|incorporate|weave|embed|mention|modify|alter|edit|translate"
        r"|encode|encrypt"
        r"|convert|render|scramble|shuffle|reverse|replace|substitute|provide|give|write|present|format|deliver"
        r"|use|apply"
        r"|express|phrase|enhance|enrich|group|sort|arrange|limit|anagram|rewrite|jumble|swap|mask|spell"
        r"|capitali[sz]e|respond|reply|answer|promote|begin|start|end|finish)"
        rf"\b(?:[^.\n]|\.[^ \n]){{0,120}}\b{_REPLY}\b",
    ),
    _phrase(
        "indirect",
        1.2,
        rf"\b(?:in|within|to|into|for|throughout|at the end of) {_REPLY}[ ,][^.\n]{{0,40}}\b(?:add|include"
        r"|insert|mention|promote|replace|use|state|recommend|suggest|substitute|integrate|encourage)\b",
    ),
    _phrase(
        "indirect",
        1.2,
        r"\b(?:respond|reply|answer|write back|communicate) (?:only |solely |exclusively |entirely )?(?:in|with"
        r"|using) (?:[a-z0-9]+ ?){1,3}\b",
    ),
    _phrase(
        "indirect",
        1.2,
        r"(?:^|[.!\n:;] {0,3}|please |then |and |must )(?:forward|send|e-?mail|upload|post|exfiltrate"
        r"|transmit) (?:[a-z]+ ){0,4}(?:to|at) (?:https?:|[a-z0-9._\-]+@|this (?:address|url|server))",
    ),
    _phrase(
        "indirect",
        1.2,
        r"\b(?:to|attention|instructions? for|note to) (?:the |any |all )?(?:a[il]|language model|llm|assistant"
        r"|chatbot)s?(?: reading| processing| summari[sz]ing)?\b[^.\n]{0,40}[:,]",
    ),
)
