"""Ranks that exchange buffers: the protocol and its transports."""
