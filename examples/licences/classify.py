"""From what a distribution says about its licence to one of five categories, with the reason.

Order of belief: the SPDX expression, the License field, the classifiers, the licence files. The
licence files also check what the others say. Whatever the tables below do not know, or where two
sources contradict each other, is `unclear`: a person decides, not a guess.
"""

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

PERMISSIVE = "permissive"
WEAK_COPYLEFT = "weak copyleft"
STRONG_COPYLEFT = "strong copyleft"
PROPRIETARY = "proprietary"
UNCLEAR = "unclear"

Category = Literal["permissive", "weak copyleft", "strong copyleft", "proprietary", "unclear"]

CATEGORIES: tuple[str, ...] = get_args(Category)
"""From the least to the most that they ask of who redistributes; `unclear` counts as the most."""

_SPDX_BY_CATEGORY = {
    PERMISSIVE: """
        0BSD AFL-3.0 Apache-1.1 Apache-2.0 Artistic-2.0 BlueOak-1.0.0 BSD-1-Clause BSD-2-Clause
        BSD-2-Clause-Patent BSD-3-Clause BSD-3-Clause-Clear BSD-4-Clause BSL-1.0 CC-BY-4.0 CC0-1.0
        CNRI-Python FTL HPND ICU ISC Libpng MIT MIT-0 MIT-CMU MulanPSL-2.0 NCSA OFL-1.1 OpenSSL
        PSF-2.0 PostgreSQL Python-2.0 Python-2.0.1 TCL UPL-1.0 Unicode-3.0 Unicode-DFS-2016
        Unlicense Vim W3C WTFPL X11 ZPL-2.1 Zlib curl""",
    WEAK_COPYLEFT: """
        CDDL-1.0 CDDL-1.1 CPL-1.0 EPL-1.0 EPL-2.0 LGPL-2.0-only LGPL-2.0-or-later LGPL-2.1-only
        LGPL-2.1-or-later LGPL-3.0-only LGPL-3.0-or-later MPL-1.0 MPL-1.1 MPL-2.0
        MPL-2.0-no-copyleft-exception MS-RL""",
    STRONG_COPYLEFT: """
        AGPL-3.0-only AGPL-3.0-or-later CC-BY-SA-4.0 CECILL-2.1 EUPL-1.2 GPL-1.0-only
        GPL-1.0-or-later GPL-2.0-only GPL-2.0-or-later GPL-3.0-only GPL-3.0-or-later OSL-3.0
        SSPL-1.0""",
    PROPRIETARY: "BUSL-1.1 Elastic-2.0 CC-BY-NC-4.0 LicenseRef-Proprietary",
}
SPDX = {
    spdx.lower(): category for category, ids in _SPDX_BY_CATEGORY.items() for spdx in ids.split()
}

_OLD_GNU_ID = re.compile(r"(a?gpl|lgpl)-(\d\.\d)(\+?)")
"""Deprecated SPDX ids, still common: GPL-3.0, GPL-3.0+."""

LINKING_EXCEPTIONS = frozenset(
    {"classpath-exception-2.0", "gcc-exception-3.1", "linux-syscall-note", "bootloader-exception"}
)
"""Exceptions that let other code link without falling under the GPL: weak copyleft in effect."""

NAMES = (
    # License fields and classifiers as people write them: pattern of the whole text -> SPDX id.
    # "BSD License" says nothing about clauses, and needs not to: all of them are permissive.
    (r"(the )?(expat|mit)( licen[cs]e)?( \(mit\))?", "MIT"),
    (r"(the )?(new |revised |modified )?bsd( licen[cs]e)?", "BSD-3-Clause"),
    (
        r"(the )?(bsd[ -]3[ -]clause|3[ -]clause bsd)( licen[cs]e)?( \(bsd-3-clause\))?",
        "BSD-3-Clause",
    ),
    (r"(the )?(bsd[ -]2[ -]clause|2[ -]clause bsd|simplified bsd)( licen[cs]e)?", "BSD-2-Clause"),
    (r"(the )?apache( software)?( licen[cs]e)?,?( version)? ?v?2(\.0)?", "Apache-2.0"),
    (r"apache software license", "Apache-2.0"),
    (r"(the )?isc( licen[cs]e)?( \(iscl\))?", "ISC"),
    (r"(the )?(python software foundation|psf)( licen[cs]e)?( agreement)?( \(psf\))?", "PSF-2.0"),
    (r"(mozilla public license|mpl)[ -]?v?2(\.0)?( \(mpl 2\.0\))?", "MPL-2.0"),
    (r"(the )?unlicense( \(unlicense\))?", "Unlicense"),
    (r"(the )?zlib( licen[cs]e)?|zlib/libpng license", "Zlib"),
    (r"zope public license( 2\.1)?|zpl( 2\.1)?", "ZPL-2.1"),
    (
        r"(gnu )?affero general public license v?3( or later.*)?( \(agplv3\+?\))?|agplv?3\+?",
        "AGPL-3.0-or-later",
    ),
    (
        r"(gnu )?(lesser|library( or lesser)?) general public license.*|(gnu )?lgpl[ v\d.+]*",
        "LGPL-2.1-or-later",
    ),
    (r"(gnu )?general public license v?3.*|(gnu )?gplv?[ -]?3\+?", "GPL-3.0-or-later"),
    (r"(gnu )?general public license v?2.*|(gnu )?gplv?[ -]?2\+?", "GPL-2.0-or-later"),
    (r"(gnu )?general public license( \(gpl\))?|(gnu )?gpl", "GPL-2.0-or-later"),
    (r"public domain|cc0.*", "CC0-1.0"),
    (
        r"(other/)?proprietary( licen[cs]e)?|commercial|all rights reserved",
        "LicenseRef-Proprietary",
    ),
    (r"nvidia proprietary software", "LicenseRef-Proprietary"),
)
_NAMES = tuple((re.compile(pattern), spdx) for pattern, spdx in NAMES)

TEXTS = (
    # Sentences, lower case and with single spaces. The one that stands first in the text wins: a
    # licence names itself before it names others.
    ("gnu affero general public license version 3", "AGPL-3.0-or-later"),
    ("gnu lesser general public license", "LGPL-2.1-or-later"),
    ("gnu library general public license", "LGPL-2.1-or-later"),
    ("gnu general public license version 3", "GPL-3.0-or-later"),
    ("gnu general public license version 2", "GPL-2.0-or-later"),
    ("gnu general public license", "GPL-2.0-or-later"),
    ("mozilla public license version 2.0", "MPL-2.0"),
    ("mozilla public license, v. 2.0", "MPL-2.0"),
    ("eclipse public license", "EPL-2.0"),
    ("business source license", "BUSL-1.1"),
    ("apache license version 2.0", "Apache-2.0"),
    ("apache license, version 2.0", "Apache-2.0"),
    ("python software foundation license version 2", "PSF-2.0"),
    ("this is free and unencumbered software released into the public domain", "Unlicense"),
    ("the origin of this software must not be misrepresented", "Zlib"),
    ("permission to use, copy, modify, and/or distribute this software for any purpose", "ISC"),
    ("permission to use, copy, modify, and distribute this software for any purpose", "ISC"),
    ("permission is hereby granted, free of charge, to any person obtaining a copy", "MIT"),
    ("redistribution and use in source and binary forms", "BSD-2-Clause"),
    ("all rights reserved. no part of this software may be", "LicenseRef-Proprietary"),
)

EXPRESSION_TOKENS_MAX = 64
"""Longest SPDX expression that is read; real ones have under ten tokens."""

NAME_CHARS_MAX = 200
"""A License field longer than this holds a whole text instead of a name."""


@dataclass
class LicenceText:
    """One licence file: what it reads as (an SPDX id, or None), and how it begins."""

    file: str
    spdx: str | None
    excerpt: str


@dataclass
class Evidence:
    """What a distribution says about its licence."""

    expression: str = ""
    licence_field: str = ""
    classifiers: list[str] = field(default_factory=list)
    texts: list[LicenceText] = field(default_factory=list)


@dataclass
class Judgement:
    """A category, the licence as an SPDX expression where known, and the reason in one sentence."""

    category: str
    licence: str
    reason: str


def classify(evidence: Evidence) -> Judgement:
    """Return the category of what a distribution says, or `unclear` with what is unclear."""
    licence, source = _declared(evidence)
    if not licence:
        return _from_texts(evidence)
    category = category_of_expression(licence)
    if category is None:
        return Judgement(UNCLEAR, licence, f"{source} says {licence!r}, which no table knows")
    return _checked_against_texts(Judgement(category, licence, f"by {source}"), evidence)


def category_of_expression(expression: str) -> str | None:
    """Return the category of an SPDX expression: the mildest of an OR, the strictest of an AND.

    None where it can't be read, or where an id that matters is not in the table.
    """
    tokens = re.findall(r"[()]|[^\s()]+", expression)[: EXPRESSION_TOKENS_MAX + 1]
    if not tokens or len(tokens) > EXPRESSION_TOKENS_MAX:
        return None
    rank = _either(tokens)
    return None if rank is None or tokens else CATEGORIES[rank]


def read_licence_text(text: str) -> str | None:
    """Return the SPDX id that a licence text reads as, or None."""
    plain = " ".join(re.sub(r"[\s#*\"'`“”]+", " ", text.lower()).split())
    hits = [(at, spdx) for sentence, spdx in TEXTS if (at := plain.find(sentence)) >= 0]
    spdx = min(hits, key=lambda hit: hit[0], default=(0, None))[1]
    return "BSD-3-Clause" if spdx == "BSD-2-Clause" and "neither the name" in plain else spdx


def _declared(evidence: Evidence) -> tuple[str, str]:
    """Return the licence that the metadata declares (empty: none), and where."""
    if evidence.expression:
        return evidence.expression, "License-Expression"
    named = evidence.licence_field.strip()
    classified = [
        name for each in evidence.classifiers if (name := each.split(" :: ")[-1]) not in _NO_LICENCE
    ]
    if named and named.upper() != "UNKNOWN":
        licence = _licence_of_field(named)
        is_known = category_of_expression(licence) is not None
        if is_known or not classified:
            return licence, "License"
    # Several classifiers may mean a choice or a sum; nobody says which. The sum is safe.
    return " AND ".join(_licence_named(name) for name in classified), "Classifier"


_NO_LICENCE = frozenset({"DFSG approved", "OSI Approved"})


def _licence_of_field(named: str) -> str:
    if len(named) > NAME_CHARS_MAX or "\n" in named:
        return read_licence_text(named) or f"{named[:40]}..."
    return named if category_of_expression(named) else _licence_named(named)


def _licence_named(name: str) -> str:
    plain = " ".join(name.lower().split())
    return next((spdx for pattern, spdx in _NAMES if pattern.fullmatch(plain)), name)


def _from_texts(evidence: Evidence) -> Judgement:
    if not evidence.texts:
        return Judgement(UNCLEAR, "", "no licence is declared and no licence file is there")
    if any(text.spdx is None for text in evidence.texts):
        return Judgement(UNCLEAR, "", "no licence is declared and a licence file is not known")
    found = sorted({text.spdx for text in evidence.texts if text.spdx})
    licence = " AND ".join(found)
    category = category_of_expression(licence) or UNCLEAR
    return Judgement(category, licence, "by the licence files; none is declared")


def _checked_against_texts(judged: Judgement, evidence: Evidence) -> Judgement:
    """Return the judgement, unless every licence file that can be read says something stricter."""
    found = {text.spdx: SPDX[text.spdx.lower()] for text in evidence.texts if text.spdx}
    rank = CATEGORIES.index(judged.category)
    stricter = {spdx for spdx, category in found.items() if CATEGORIES.index(category) > rank}
    if not stricter:
        return judged
    names = ", ".join(sorted(stricter))
    if len(stricter) == len(found):
        reason = f"{judged.licence!r} is declared, but its licence files read as {names}"
        return Judgement(UNCLEAR, judged.licence, reason)
    return Judgement(
        judged.category, judged.licence, f"{judged.reason}; brings parts under {names}"
    )


# -- SPDX expressions ----------------------------------------------------------------------------
# either := both (OR both)*    both := one (AND one)*    one := id (WITH id)? | ( either )


def _either(tokens: list[str]) -> int | None:
    ranks = [_both(tokens)]
    while tokens and tokens[0].upper() == "OR":
        tokens.pop(0)
        ranks.append(_both(tokens))
    known = [rank for rank in ranks if rank is not None]
    return min(known, default=None)  # one known choice is enough to know what one may do


def _both(tokens: list[str]) -> int | None:
    ranks = [_one(tokens)]
    while tokens and tokens[0].upper() == "AND":
        tokens.pop(0)
        ranks.append(_one(tokens))
    known = [rank for rank in ranks if rank is not None]
    return max(known) if len(known) == len(ranks) else None


def _one(tokens: list[str]) -> int | None:
    if not tokens:
        return None
    first = tokens.pop(0)
    if first == "(":
        rank = _either(tokens)
        return rank if tokens and tokens.pop(0) == ")" else None
    rank = _rank_of_id(first)
    if tokens and tokens[0].upper() == "WITH":
        tokens.pop(0)
        exception = tokens.pop(0).lower() if tokens else ""
        if exception in LINKING_EXCEPTIONS and rank == CATEGORIES.index(STRONG_COPYLEFT):
            return CATEGORIES.index(WEAK_COPYLEFT)
    return rank


def _rank_of_id(spdx: str) -> int | None:
    old = _OLD_GNU_ID.fullmatch(spdx.lower())
    if old:
        spdx = f"{old[1]}-{old[2]}-{'or-later' if old[3] else 'only'}"
    category = SPDX.get(spdx.lower())
    return None if category is None else CATEGORIES.index(category)
