"""Edits that mend violations: planned on a copy in memory, judged again, shown, then written."""

from perdure.contracts.fix._applying import Change, apply, difference
from perdure.contracts.fix._planning import Mended, Plan, Refused, may_mend, plan

__all__ = ["Change", "Mended", "Plan", "Refused", "apply", "difference", "may_mend", "plan"]
