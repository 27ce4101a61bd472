import unittest

from bills.parse import Bill, parse, parse_cents


class ParseTest(unittest.TestCase):
    def test_amounts(self):
        known = {"12": 1200, "12.5": 1250, "12.50": 1250, "12,50": 1250, "0,05": 5, "-3,20": -320}
        for text, cents in known.items():
            with self.subTest(text):
                self.assertEqual(parse_cents(text), cents)

    def test_lines(self):
        text = "# November\n\n2026-11-03;ada;12,50;bread\n   \n2026-11-04; bob ;3;tea\n"
        bread, tea = parse(text)
        self.assertEqual(bread, Bill("2026-11-03", "ada", 1250, "bread"))
        self.assertEqual(tea.payer, "bob")
