"""Instructions that a program can check, for prompts of IFBench: our own checkers.

Only instructions whose wording leaves nothing to taste are here; prompts that carry another one are
left out and counted. Reasoning is removed before anything is checked, and an empty text keeps no
instruction.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from educe.core.protocols import Services
from educe.core.types import Score, Task, Verdict, user
from educe.evaluation.sets.items import Item, Loaded, without_repetitions
from educe.evaluation.sets.packages import PackageFiles
from educe.evaluation.sets.questions import json_lines
from educe.rewards.outcome.extraction import strip_reasoning

Arguments = Mapping[str, Any]
Check = Callable[[str, Arguments], bool]

_WORD = re.compile(r"[^\W\d_]+(?:['’\-][^\W\d_]+)*")
_SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’)\]]))\s+")
_NUMBER = re.compile(r"(?<![\w.,])[-+]?\d[\d,]*(?:\.\d+)?(?![\w])")
_CONJUNCTIONS = frozenset({"and", "but", "for", "nor", "or", "so", "yet"})
_COUNTS = (1, 2, 3, 5, 7)


def words(text: str) -> list[str]:
    """Return the words of a text, folded, without numbers and marks."""
    return [w.casefold() for w in _WORD.findall(text)]


def sentences(text: str) -> list[str]:
    """Return the sentences: what full stops, question and exclamation marks separate."""
    return [s for s in (p.strip() for p in _SENTENCE.split(text.strip())) if words(s)]


def _tokens(text: str) -> list[str]:
    return text.split()


def _keywords(text: str, a: Arguments) -> bool:
    found = Counter(words(text))
    wanted = [str(a[f"keyword{i}"]).casefold() for i in range(1, 6)]
    return all(found[w] == count for w, count in zip(wanted, _COUNTS, strict=True))


def _conjunctions(text: str, a: Arguments) -> bool:
    return len(_CONJUNCTIONS & set(words(text))) >= int(a["small_n"])


def _numbers(text: str, a: Arguments) -> bool:
    return len(_NUMBER.findall(text)) == int(a["N"])


def _punctuation(text: str, a: Arguments) -> bool:
    return all(mark in text for mark in ".,!?;:") and ("?!" in text or "!?" in text or "‽" in text)


def _word_range(text: str, a: Arguments) -> bool:
    return int(a["min_words"]) <= len(_tokens(text)) <= int(a["max_words"])


def _unique_words(text: str, a: Arguments) -> bool:
    return len(set(words(text))) >= int(a["N"])


def _no_whitespace(text: str, a: Arguments) -> bool:
    return not any(c.isspace() for c in text)


def _newline_words(text: str, a: Arguments) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    return len(lines) > 1 and all(len(line.split()) == 1 for line in lines)


def _stairs(text: str, a: Arguments) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    depths = [len(line) - len(line.lstrip()) for line in lines]
    return len(lines) > 1 and all(b > a for a, b in pairwise(depths))


def _separated_list(text: str, a: Arguments) -> bool:
    return text.count(str(a["sep"])) >= 2


def _sentences_then_bullets(text: str, a: Arguments) -> bool:
    place = text.find("\n*")
    if place < 0:
        return False
    before, rest = text[:place], text[place + 1 :]
    full = [s for s in sentences(before) if s.endswith(".")]
    return len(full) >= 2 and sum(x.lstrip().startswith("*") for x in rest.splitlines()) >= 2


def _sub_bullets(text: str, a: Arguments) -> bool:
    marks = [x.lstrip()[0] for x in text.splitlines() if x.lstrip()[:2] in ("* ", "- ")]
    if "*" not in marks or marks[0] != "*":
        return False
    return all(b == "-" for m, b in pairwise([*marks, "*"]) if m == "*")


def _option(text: str, a: Arguments) -> bool:
    options = [o.strip() for o in re.split(r"/|\bor\b|,", str(a["options"])) if o.strip()]
    folded = text.strip().strip("*\"'.").casefold()
    return folded in {o.casefold() for o in options} | {
        o.split(")")[-1].strip().casefold() for o in options
    }


def _nesting(text: str, a: Arguments) -> bool:
    closing = {")": "(", "]": "[", "}": "{"}
    stack: list[str] = []
    deepest = 0
    for mark in text:
        if mark in "([{":
            stack.append(mark)
            deepest = max(deepest, len(stack))
        elif mark in closing and stack and stack[-1] == closing[mark]:
            stack.pop()
    return deepest >= 5


def _trigram_overlap(text: str, a: Arguments) -> bool:
    def trigrams(part: str) -> set[str]:
        return {part[i : i + 3] for i in range(len(part) - 2)}

    wanted = trigrams(str(a["reference_text"]))
    if not wanted or not trigrams(text):
        return False
    share = 100 * len(trigrams(text) & wanted) / len(trigrams(text))
    return abs(share - float(a["percentage"])) <= 2


def _increment(text: str, a: Arguments) -> bool:
    sizes = [len(words(s)) for s in sentences(text)]
    return len(sizes) > 1 and all(b - x == int(a["small_n"]) for x, b in pairwise(sizes))


def _keyword_sentence(text: str, a: Arguments) -> bool:
    found, place = sentences(text), int(a["N"])
    return len(found) >= place and str(a["word"]).casefold() in words(found[place - 1])


def _alphabet(text: str, a: Arguments) -> bool:
    firsts = [w[0] for w in words(text)]
    letters = "abcdefghijklmnopqrstuvwxyz"
    if len(firsts) < 2 or any(f not in letters for f in firsts):
        return False
    return all((letters.index(b) - letters.index(x)) % 26 == 1 for x, b in pairwise(firsts))


def _last_first(text: str, a: Arguments) -> bool:
    found = [words(s) for s in sentences(text)]
    return len(found) > 1 and all(x[-1] == b[0] for x, b in pairwise(found))


def _paragraphs_close(text: str, a: Arguments) -> bool:
    found = [words(p) for p in text.splitlines() if words(p)]
    return bool(found) and all(len(p) > 1 and p[0] == p[-1] for p in found)


def _no_consecutive(text: str, a: Arguments) -> bool:
    found = words(text)
    return len(found) > 1 and all(x[0] != b[0] for x, b in pairwise(found))


def _palindromes(text: str, a: Arguments) -> bool:
    return len({w for w in words(text) if len(w) >= 5 and w == w[::-1]}) >= 10


def _prime_lengths(text: str, a: Arguments) -> bool:
    found = words(text)
    return bool(found) and all(_is_prime(len(w)) for w in found)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def _repeats(text: str, a: Arguments) -> bool:
    counts = Counter(words(text))
    return bool(counts) and max(counts.values()) <= int(a["small_n"])


def _three_vowels(text: str, a: Arguments) -> bool:
    folded = unicodedata.normalize("NFKD", text.casefold())
    return bool(words(text)) and len({c for c in folded if c in "aeiou"}) <= 3


def _template(text: str, a: Arguments) -> bool:
    places = [text.find(p) for p in ("My Answer:", "My Conclusion:", "Future Outlook:")]
    return -1 not in places and places == sorted(places)


def _multiples(text: str, a: Arguments) -> bool:
    return [int(n) for n in re.findall(r"\d+", text)] == [14, 21, 28, 35, 42, 49]


def _span(text: str, a: Arguments) -> bool:
    wanted = str(a.get("prompt_to_repeat") or "").split()[int(a["n_start"]) : int(a["n_end"]) + 1]
    return bool(wanted) and text.split() == wanted


def _changed_repeat(text: str, a: Arguments) -> bool:
    wanted, got = str(a.get("prompt_to_repeat") or "").split(), text.split()
    return bool(wanted) and len(got) == len(wanted) and got[1:] == wanted[1:] and got != wanted


def _distinct_equal_sentences(text: str, a: Arguments) -> bool:
    found = sentences(text)
    every = [w for s in found for w in words(s)]
    return len(found) == 3 and len({len(s) for s in found}) == 1 and len(set(every)) == len(every)


def _consonants(text: str, a: Arguments) -> bool:
    """Every word has two or more consonants side by side."""
    found = words(text)
    return bool(found) and all(re.search(r"[bcdfghjklmnpqrstvwxyz]{2}", w) for w in found)


CHECKS: Mapping[str, Check] = {
    "count:keywords_multiple": _keywords,
    "count:conjunctions": _conjunctions,
    "count:numbers": _numbers,
    "count:punctuation": _punctuation,
    "count:word_count_range": _word_range,
    "count:unique_word_count": _unique_words,
    "custom:multiples": _multiples,
    "format:line_indent": _stairs,
    "format:list": _separated_list,
    "format:newline": _newline_words,
    "format:no_bullets_bullets": _sentences_then_bullets,
    "format:no_whitespace": _no_whitespace,
    "format:options": _option,
    "format:output_template": _template,
    "format:parentheses": _nesting,
    "format:sub-bullets": _sub_bullets,
    "ratio:overlap": _trigram_overlap,
    "ratio:sentence_words": _distinct_equal_sentences,
    "repeat:repeat_change": _changed_repeat,
    "repeat:repeat_span": _span,
    "sentence:increment": _increment,
    "sentence:keyword": _keyword_sentence,
    "words:alphabet": _alphabet,
    "words:consonants": _consonants,
    "words:last_first": _last_first,
    "words:no_consecutive": _no_consecutive,
    "words:palindrome": _palindromes,
    "words:paragraph_last_first": _paragraphs_close,
    "words:prime_lengths": _prime_lengths,
    "words:repeats": _repeats,
    "words:vowel": _three_vowels,
}


def kept_rules(text: str, rules: list[list[Any]]) -> list[bool]:
    """Return for every (kind, arguments) whether the visible text keeps it."""
    visible = strip_reasoning(text)
    return [bool(visible.strip()) and CHECKS[kind](visible, args) for kind, args in rules]


def grade_rules(task: Task, text: str, services: Services) -> Score:
    """Score 1 when every instruction is kept (``metadata``: rules); parts hold each one."""
    rules = task.metadata["rules"]
    if not strip_reasoning(text).strip():
        return Score.unparseable("nothing was said")
    kept = kept_rules(text, rules)
    broken = [kind for (kind, _), ok in zip(rules, kept, strict=True) if not ok]
    share = sum(kept) / len(kept)
    return Score(
        float(not broken),
        Verdict.WRONG if broken else Verdict.RIGHT,
        reason=f"not kept: {', '.join(broken)}" if broken else "",
        parts={"instructions": share},
    )


def ifbench(files: PackageFiles) -> Loaded:
    """Prompts all of whose instructions are checked here. A shipped sample output that keeps them
    is the gold; prompts without one have none."""
    samples: dict[str, list[str]] = {}
    for row in json_lines(files.read("ifbench/data/sample_output.jsonl")):
        samples.setdefault(row["prompt"], []).append(row["response"])
    items, num_other = [], 0
    for row in json_lines(files.read("ifbench/data/IFBench_test.jsonl")):
        if not set(row["instruction_id_list"]) <= set(CHECKS):
            num_other += 1
            continue
        rules = [
            [kind, {k: v for k, v in args.items() if v is not None}]
            for kind, args in zip(row["instruction_id_list"], row["kwargs"], strict=True)
        ]
        gold = next((s for s in samples.get(row["prompt"], []) if all(kept_rules(s, rules))), None)
        items.append(Item((user(row["prompt"]),), gold, {"rules": rules}))
    kept, repeated = without_repetitions(items)
    dropped = {"instructions without a checker": num_other, "repeated": repeated}
    return Loaded(kept, {k: v for k, v in dropped.items() if v})
