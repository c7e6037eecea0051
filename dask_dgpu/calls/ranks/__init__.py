"""The client's side of calls: connections to the ranks, and the arrays that they keep.

A call is a message to each rank, and returns at once. If a rank is lost, or a call fails, all
connections are closed, and the ranks free all arrays. Then arrays are computed again as they are
needed: each knows its call, and that its arguments, back to arrays that Dask's scheduler knows.
"""
