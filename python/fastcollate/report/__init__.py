"""The report on rollouts: what is collected of them, and the page that shows it."""
