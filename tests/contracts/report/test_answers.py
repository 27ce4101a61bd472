"""Answers to questions, as people read them."""

from perdure.contracts.findings import Contract, Verdict
from perdure.contracts.report import as_text
from tests.contracts.report.test_formats import finding, report


def test_a_question_of_several_contracts_is_answered_for_all_of_them():
    asked = [
        finding(
            contract,
            Verdict.UNDECIDED,
            question="Where are they kept?",
            answer=f"# perdure: ignore[{contract.value}] WHY, above the line that is named",
        )
        for contract in (Contract.S1, Contract.S2, Contract.R6)
    ]
    assert "answer: # perdure: ignore[S1,S2,R6] WHY" in as_text(report(*asked))
    assert "answer: # perdure: ignore[S2] WHY" in as_text(report(asked[1]))
