"""Memory that a client shares with the workers of its host, for blocks of any size.

A window is memory of the client without a name (``memfd_create``), so nothing is left of it after
both processes. A worker maps it by the client's number and file descriptor, and pins it if it has a
GPU. A block goes in pieces through the slots of a window: while the client copies one piece, the
worker copies the one before.
"""
