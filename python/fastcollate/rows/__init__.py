"""Input of rows: ragged columns, fields and samples."""
