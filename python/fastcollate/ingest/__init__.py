"""What rows may come as: ragged columns, fields and samples."""
