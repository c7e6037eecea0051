"""Arrays, layouts, dtypes and costs, and the bases of pieces and regions."""
