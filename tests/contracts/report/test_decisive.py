"""Which line a reader is sent to, and which lines of a long story are left out."""

import pytest

from perdure.contracts.report._decisive import decisive
from tests.contracts.making import at

IMPORT = at("run.py", 3, "imports service")
SETTING = at("settings.py", 8, "URL is set nowhere, so its default applies")
MADE = at("memory.py", 18, "makes an InMemoryStore")
NAMED = at("service.py", 40, "a thread is named")


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        ((IMPORT, SETTING, NAMED, MADE), MADE),
        ((IMPORT, SETTING, NAMED), NAMED),
        ((IMPORT, SETTING), IMPORT),
        ((), None),
    ],
)
def test_a_story_is_about_what_is_made(story, expected):
    assert decisive(story) is expected
