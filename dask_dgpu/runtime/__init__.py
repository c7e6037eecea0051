"""The gang: programs, and the plugins of scheduler and workers that run them."""
