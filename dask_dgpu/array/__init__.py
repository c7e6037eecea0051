"""Operations on arrays for users: one module or folder each."""
