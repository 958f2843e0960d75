"""Drop-in replacements: one module per framework, with its names, signatures and exceptions."""
