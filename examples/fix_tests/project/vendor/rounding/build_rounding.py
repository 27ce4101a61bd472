"""Builds the wheel of `rounding` with the standard library alone (PEP 517)."""

import base64
import hashlib
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
INFO = "rounding-1.0.dist-info"
FILES = {
    f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: rounding\nVersion: 1.0\n",
    f"{INFO}/WHEEL": (
        "Wheel-Version: 1.0\nGenerator: here\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ),
}


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "rounding-1.0-py3-none-any.whl"
    files = {"rounding.py": (HERE / "rounding.py").read_text(encoding="utf-8"), **FILES}
    lines = [f"{path},{_digest(text)},{len(text.encode())}" for path, text in files.items()]
    files[f"{INFO}/RECORD"] = "\n".join([*lines, f"{INFO}/RECORD,,", ""])
    with zipfile.ZipFile(Path(wheel_directory) / name, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(zipfile.ZipInfo(path), text)
    return name


def _digest(text):
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
