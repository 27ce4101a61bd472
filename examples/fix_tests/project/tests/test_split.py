import unittest

from bills.parse import Bill
from bills.split import balances, split, weighted


class SplitTest(unittest.TestCase):
    def test_no_cent_is_lost(self):
        for cents in (0, 1, 100, 101, 1000, 99_999):
            parts = split(cents, ["ada", "bob", "cy"])
            with self.subTest(cents):
                self.assertEqual(sum(parts.values()), cents)
                self.assertLessEqual(max(parts.values()) - min(parts.values()), 1)

    def test_weights(self):
        self.assertEqual(weighted(100, {"ada": 2, "bob": 1}), {"ada": 67, "bob": 33})

    def test_balances_add_up_to_nothing(self):
        bills = [Bill("d", "ada", 1000, "x"), Bill("d", "bob", 101, "y")]
        totals = balances(bills, ["ada", "bob", "cy"])
        self.assertEqual(sum(totals.values()), 0)
        self.assertEqual(totals["ada"], 1000 - 334 - 34)
