"""What Perdure costs, measured beside what the machine itself costs."""
