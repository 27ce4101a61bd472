import unittest

from bills.report import euros, report


class ReportTest(unittest.TestCase):
    def test_euros(self):
        self.assertEqual(euros(1250), "12.50")
        self.assertEqual(euros(-5), "-0.05")
        self.assertEqual(euros(-1250), "-12.50")

    def test_who_is_owed_most_comes_first(self):
        totals = {"ada": -500, "bob": 1250, "cy": -750, "abe": -500}
        lines = ["bob: 12.50", "abe: -5.00", "ada: -5.00", "cy: -7.50"]
        self.assertEqual(report(totals).splitlines(), lines)
