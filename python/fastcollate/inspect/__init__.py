"""What people look at: rows and plans as text and HTML, mistakes, audits and forecasts."""
