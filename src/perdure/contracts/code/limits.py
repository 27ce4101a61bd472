"""How much code is read and followed; what is larger is left out and said to be."""

MODULES_MAX = 4_000
"""Modules that one service may reach. The largest service seen reaches 700."""

SCOPES_MAX = 60_000
"""Functions, methods and class bodies of one service that are looked at."""

TEXT_OF_MODULE_MAX = 1_000_000
"""Characters of one module. The largest hand-written one seen has 250,000."""

NESTING_MAX = 60
"""Statements within statements. Deeper ones are left out."""

FLOW_STEPS_MAX = 1_500
"""Steps to answer one question about a value. Real answers took fewer than 900."""

FLOW_BRIEF_MAX = 150
"""Steps of a question about a setting: a field of settings takes 20, one through calls 80."""

FLOW_EXACT_MAX = 300
"""Steps of one question after which parts of it are not traced again on each way to them."""

FLOW_DEPTH_MAX = 20
"""Names, calls and attributes followed one after the other for one value."""

FLOW_TOTAL_MAX = 12_000
"""Steps for all questions of one kind about one service: a bound on time, about 2 s."""

DECIDE_DEPTH_MAX = 8
"""Tests that depend on one another; beyond them it is not known how one comes out."""

CONDITIONS_MAX = 20
"""Conditions that one value carries. With more of them it is unknown."""

LEAVES_MAX = 16
"""Values that one expression may have; beyond them it is unknown."""

CANDIDATES_MAX = 8
"""Methods of one name that a call on an unknown object may mean; beyond them it is unknown."""

CALLERS_MAX = 24
"""Call sites that are looked at for the value of one parameter."""

TEXT_MAX = 2_000
"""Characters of a string that is put together from others."""

STORY_MAX = 8
"""Steps of evidence that one fact carries."""

UNREACHABLE_MAX = 20
"""Sites named that the start command never reaches."""

UNREACHABLE_READ_MAX = 60
"""Modules read to name them."""

CONFIG_DEPTH_MAX = 12
"""Levels of a configuration file that are looked into."""

LINE_LAST = 10**9
"""Stands for the end of a file: what a name means once everything was executed."""

SHOWN_MAX = 70
"""Characters of an expression that a story shows."""

NUMBER_MAX = 1e12
"""Numbers that are computed with; beyond them a sum is unknown."""

DYNAMIC_DEPTH_MAX = 3
"""Names that stand for the name of a module, one after the other."""

ENTRIES_MAX = 200
"""Strings of one file that are looked at as names of modules."""

EXECUTED_DEPTH_MAX = 6
"""Uses of uses that are looked at for a setting that turns them off."""

MENTIONS_MAX = 60
"""Uses of one name that are looked at for the same."""

ALIKE_MAX = 3
"""Methods of one name that a call of it may lead to; beyond them it leads nowhere."""

CONNECTIONS_DEEP = 4
"""Connections within pools within clients, looked into for a URL."""

ENTRIES_WALKED_MAX = 5_000
"""Parts of a function that starts a server, looked at for the name of its application."""

SUPERVISED_MAX = 40
"""Programs that one supervisor of a container starts."""

FIELDS_DEEP_MAX = 8
"""F-strings within fields of f-strings."""

BLOCKS_MAX = 8
"""Functions and classes of one module that are left out, as they are in a newer Python."""

WRITING_MAX = 60
"""Functions that the writes of one saver come to; what is beyond them is not looked at."""

NEAR_LINES_MAX = 120
"""Lines of a function in which a dict and messages for a model say something of each other."""

LINES_NEAR = 2
"""Lines of a call from which its first one is seen at a glance; else that is told, too."""

IMPORTS_MAX = 20
"""Imports of one `try` that are looked for in the lists of a project."""

LIST_CHARACTERS_MAX = 200_000
"""Characters of a list of packages, or of a Dockerfile that installs it."""

IGNORED_MAX = 500
"""Lines of a `.dockerignore` that are looked at."""

WAITED_LINES_MAX = 100_000
"""Lines in which waits are looked for, counted again for each dict that they are about."""

HANDED_LINES_MAX = 20_000
"""Lines through which what dicts hold is followed to a model, counted again for each dict.

The most that a program needed of those that were seen is 5,000."""

APART_MAX = 400
"""Functions that a request may come to; of one that may come to more nothing is apart."""
