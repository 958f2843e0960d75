"""Operations on batches, one module each."""
