"""Notebooks with the strategies of GPyTorch."""
