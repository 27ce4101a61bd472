"""The transcript of a trial: JSON lines for programs and a story for people, as it happens."""

import json
from collections.abc import Callable
from pathlib import Path

from perdure.clock import Clock
from perdure.contracts.inject import limits

Progress = Callable[[str], None]
"""Gets each line of the story as it is written."""


class Transcript:
    """Two files of one folder: `transcript.jsonl` and `story.txt`; every line is on disk at once.

    `did` is what the trial did, `saw` is what it saw, `said` is what the application said of
    itself, `concluded` the outcome. Fields are JSON values.
    """

    def __init__(self, folder: Path, clock: Clock, progress: Progress | None = None) -> None:
        """Begin both files in `folder`, which is made; time counts from now."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._progress = progress
        self._lines = (folder / "transcript.jsonl").open("w", encoding="utf-8", buffering=1)
        self._story = (folder / "story.txt").open("w", encoding="utf-8", buffering=1)
        self._count = 0

    def did(self, text: str, **fields: object) -> None:
        """Write what the trial did."""
        self._write("did", text, fields)

    def saw(self, text: str, **fields: object) -> None:
        """Write what it saw."""
        self._write("saw", text, fields)

    def said(self, text: str, **fields: object) -> None:
        """Write what the application said of itself."""
        self._write("said", text, fields)

    def concluded(self, text: str, **fields: object) -> None:
        """Write the outcome."""
        self._write("concluded", text, fields)

    def keep(self, name: str, text: str) -> None:
        """Keep a whole text, such as a log, as a file beside the transcript."""
        (self.folder / name).write_text(text[-limits.LOG_BYTES_MAX :], encoding="utf-8")

    def close(self) -> None:
        """Close both files; once more is fine."""
        self._lines.close()
        self._story.close()

    def _write(self, kind: str, text: str, fields: dict[str, object]) -> None:
        self._count += 1
        if self._count > limits.TRANSCRIPT_LINES_MAX or self._lines.closed:
            return
        at_s = self._clock.monotonic_s() - self._began_s
        shown = "".join(c if c.isprintable() else " " for c in text)[: limits.LINE_CHARACTERS_MAX]
        line = {"at_s": round(at_s, 3), "kind": kind, "text": shown, **fields}
        self._lines.write(json.dumps(line, default=str) + "\n")
        story = f"{at_s:8.2f} s  {kind:<9}  {shown}"
        self._story.write(story + "\n")
        if self._progress is not None:
            self._progress(story)
