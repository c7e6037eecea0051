"""Memory that a client shares with the workers of its host, for blocks of any size.

A window is memory of the client without a name (``memfd_create``), so nothing is left of it after
both processes. A worker maps it by the client's number and file descriptor, and pins it if it has a
GPU. One call to the worker moves blocks in pieces through a ring of slots: one process fills slots
while the other empties those before, and both note in the window which slots are full.
"""
