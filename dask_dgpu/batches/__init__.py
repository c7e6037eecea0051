"""Host arrays of any size through an operation: planned, and in batches that fit the devices.

A call is written in index notation (``notation``, ``rules``): which axes of operands and result can
be cut together. The planner chooses the cuts (``choose``, ``plan``), and ``run`` moves batch by
batch through this process or a cluster (``sites``).
"""
