"""Audit of graders and data: wrong accepts and rejects, leaks, and who looked."""
