"""What all tests share."""

from hypothesis import settings

# How long one example takes depends on what else the machine does; a test has its own time limit.
settings.register_profile("perdure", deadline=None)
settings.load_profile("perdure")


def pytest_terminal_summary(terminalreporter):
    """Show figures that tests recorded (`record_property("figure", ...)`), from every worker."""
    reports = terminalreporter.getreports("passed")
    shown = [
        value for report in reports for name, value in report.user_properties if name == "figure"
    ]
    for value in shown:
        terminalreporter.write_line(f"figure: {value}")
