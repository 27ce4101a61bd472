"""What the code of a service does with state, signals, databases and resources.

Nothing of it is executed.
"""

from perdure.contracts.code.reader import CodeReader, read_code, share_code

__all__ = ["CodeReader", "read_code", "share_code"]
