"""The report on rollouts: collecting its figures, and the HTML page."""
