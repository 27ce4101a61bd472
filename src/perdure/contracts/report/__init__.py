"""What is said of a report: to people, to programs, to code hosts. Pure: text in, text out."""

from perdure.contracts.report._edits import Edit
from perdure.contracts.report._explained import EXPLAINED, explained, explained_json
from perdure.contracts.report._github import as_github
from perdure.contracts.report._json import as_json
from perdure.contracts.report._junit import as_junit
from perdure.contracts.report._markdown import as_markdown
from perdure.contracts.report._plain import one_line, quiet
from perdure.contracts.report._sarif import as_sarif
from perdure.contracts.report._text import WORDS, as_text
from perdure.contracts.report._titles import LOST, TITLES

__all__ = [
    "EXPLAINED",
    "LOST",
    "TITLES",
    "WORDS",
    "Edit",
    "as_github",
    "as_json",
    "as_junit",
    "as_markdown",
    "as_sarif",
    "as_text",
    "explained",
    "explained_json",
    "one_line",
    "quiet",
]
