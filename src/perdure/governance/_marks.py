"""Which of very many pages were seen, in a few bytes for each.

Theory: a Bloom filter. It may say of a page that was not seen that it was, one time in about two
thousand: such a page is kept, and is another one in the next collection, as each has another salt.
It never says of a page that was seen that it was not.
"""

from hashlib import blake2b

from perdure.governance.limits import MARK_BITS, MARK_BITS_MIN, MARK_PROBES

_HALF = 8


class Marks:
    """Names that were seen. Takes `MARK_BITS` bits for each of the pages that there are."""

    def __init__(self, pages: int, salt: int) -> None:
        """Make room for so many pages."""
        self._size = max(pages * MARK_BITS, MARK_BITS_MIN)
        self._bits = bytearray(self._size // 8 + 1)
        self._salt = salt.to_bytes(_HALF, "big")

    def _places(self, name: bytes) -> list[int]:
        digest = blake2b(name, digest_size=2 * _HALF, salt=self._salt).digest()
        first, step = (int.from_bytes(part, "big") for part in (digest[:_HALF], digest[_HALF:]))
        return [(first + probe * (step | 1)) % self._size for probe in range(MARK_PROBES)]

    def add(self, name: bytes) -> None:
        """Note that a page was seen."""
        for place in self._places(name):
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, name: bytes) -> bool:
        """Return whether a page was seen, or looks like one."""
        return all(self._bits[place >> 3] & (1 << (place & 7)) for place in self._places(name))
